"""A chart is a picture for sighted people, and a table for everyone."""

from typing import Any

import pytest

from tests.sandbox.blockkit.charts import CHARTS, axis_chart, series
from tests.sandbox.page.fake_slack import FakeSlack, Json
from tests.sandbox.page.scenes import BOT, message, ts, workspace
from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser

SPACE = "\ue00d"  # of WebDriver
PICTURE = "article .chart-picture svg"
MARKS = {"bar": "rect.bar", "line": "circle.dot", "area": "circle.dot"}


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
def test_each_value_has_a_mark(screen: Screen, slack: FakeSlack, kind: str) -> None:
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


def test_the_keyboard_opens_the_table(screen: Screen, slack: FakeSlack) -> None:
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
