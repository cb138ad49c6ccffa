"""A chart is a picture for sighted people, and a table for everyone."""

from typing import Any

import pytest

from tests.sandbox.blockkit.charts import CHARTS, axis_chart, pie_chart, series
from tests.sandbox.page.fake_slack import FakeSlack, Json
from tests.sandbox.page.scenes import BOT, message, ts, view, workspace
from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser

SPACE = "\ue00d"  # of WebDriver
EVIL = '<img src=x onerror="window.hacked = 1">'
PICTURE = "article .chart-picture svg"
MARKS = {"bar": "rect.bar", "line": "circle.dot", "area": "circle.dot"}
# Of each mark, where it ends on the other side of the line of zero: above is negative.
HEIGHTS = """
const zero = document.querySelector(".zero").getBoundingClientRect().top;
return [...document.querySelectorAll("rect.bar")].map((bar) => {
  const {top, bottom} = bar.getBoundingClientRect();
  return Math.round((bottom - zero > 1 ? bottom : top) - zero);
});
"""


def show(screen: Screen, slack: FakeSlack, block: Json) -> None:
    said = message(ts(1), BOT, "x", blocks=[block])
    slack.state = workspace([said])
    screen.open()
    screen.one("article .block")


def rows(screen: Screen) -> list[list[str]]:
    found: list[list[str]] = screen.run(
        "return [...document.querySelectorAll('article tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return found


@pytest.mark.parametrize("kind", MARKS)
def test_a_chart_has_a_mark_for_each_value(
    screen: Screen, slack: FakeSlack, kind: str
) -> None:
    show(screen, slack, CHARTS[kind])
    screen.one(PICTURE)

    said = [node.text for node in screen.all("article figcaption, .chart-legend li")]
    assert said == ["Calls of each day", "Approved", "Net"]
    titles: Any = screen.run(
        "return [...document.querySelectorAll(arguments[0])].map((m) => m.textContent)",
        MARKS[kind],
    )
    assert titles[0] == "Mon 16 · Approved: 4"
    assert titles[-1] == "Wed 18 · Net: 3"
    assert len(titles) == 6
    drawn = screen.text(PICTURE)
    assert all(text in drawn for text in ("Mon 16", "Tue 17", "Wed 18", "Day", "Calls"))


def test_bars_are_as_long_as_their_numbers(screen: Screen, slack: FakeSlack) -> None:
    show(screen, slack, axis_chart("bar", series("x", 4, -2, 8)))
    screen.one(PICTURE)

    first, second, third = screen.run(HEIGHTS)

    assert abs(third - 2 * first) <= 2
    assert first < 0 < second


def test_a_pie_has_a_slice_for_each_segment(screen: Screen, slack: FakeSlack) -> None:
    show(screen, slack, pie_chart(("Approved", 3), ("Rejected", 1)))
    screen.one(PICTURE)

    assert [one.get_attribute("stroke-dasharray") for one in screen.all(".slice")] == [
        "0.75 0.25",
        "0.25 0.75",
    ]
    assert rows(screen) == [
        ["", "Value", "Share"],
        ["Approved", "3", "75%"],
        ["Rejected", "1", "25%"],
    ]


def test_the_numbers_are_a_table_that_the_keyboard_opens(
    screen: Screen, slack: FakeSlack
) -> None:
    show(screen, slack, CHARTS["bar"])
    label = screen.one(PICTURE).get_attribute("aria-label")
    assert not screen.all("article table")[0].is_displayed()

    screen.run("document.querySelector('article summary').focus()")
    screen.press(SPACE)

    screen.one("article table")
    assert label == "Bar chart; its numbers are in the table below."
    assert rows(screen) == [
        ["Day", "Approved", "Net"],
        ["Mon 16", "4", "-1"],
        ["Tue 17", "0", "7"],
        ["Wed 18", "2.5", "3"],
    ]
    scopes: Any = screen.run(
        "return [...document.querySelectorAll('article th')].map((th) => th.scope)"
    )
    assert scopes == ["col"] * 3 + ["row"] * 3


def test_a_chart_is_drawn_again_for_another_width(
    screen: Screen, slack: FakeSlack
) -> None:
    show(screen, slack, CHARTS["bar"])
    wide = int(screen.one(PICTURE).get_attribute("width") or 0)

    screen.size(390, 844)

    def is_narrow() -> bool:
        narrow = int(screen.one(PICTURE).get_attribute("width") or 0)
        return 200 < narrow < wide

    screen.wait(is_narrow, "a narrow chart")


@pytest.mark.parametrize("values", [(0, 0, 0), (10**15, 1, 0), (-5, -1, -3)])
def test_any_values_have_an_axis_with_zero(
    screen: Screen, slack: FakeSlack, values: tuple[float, float, float]
) -> None:
    show(screen, slack, axis_chart("bar", series("x", *values)))
    screen.one(PICTURE)

    assert len(screen.all(".zero")) == 1
    bad: Any = screen.run(
        "return [...document.querySelectorAll('article svg *')].flatMap((node) =>"
        " [...node.attributes]).filter(({value}) => /NaN|Infinity/.test(value)).length"
    )
    assert bad == 0


def test_texts_of_a_chart_are_never_markup(screen: Screen, slack: FakeSlack) -> None:
    block = axis_chart("bar", {"name": EVIL, "data": [{"label": EVIL, "value": 1}]})
    block["title"] = EVIL
    block["chart"]["axis_config"] = {
        "categories": [EVIL],
        "x_label": EVIL,
        "y_label": EVIL,
    }
    show(screen, slack, block)

    screen.one(PICTURE)

    assert screen.text("article figcaption") == EVIL
    assert screen.run("return window.hacked ?? null") is None
    assert screen.all("article img") == []


def test_a_chart_that_slack_does_not_have_is_loud(
    screen: Screen, slack: FakeSlack
) -> None:
    show(screen, slack, CHARTS["bar"] | {"chart": {"type": "scatter"}})

    assert "scatter" in screen.words("article .block-unknown")


def test_a_chart_in_a_modal_is_as_loud_as_an_unknown_block(
    screen: Screen, slack: FakeSlack
) -> None:
    slack.show(views=[view("V1", [CHARTS["pie"]])])

    screen.open()

    assert "outside a message" in screen.words(".dialog .block-unknown")
