"""Check charts by Slack's documentation; `charts.py` names the sources."""

import json
import math
from typing import Any

import pytest

from keyturn.sandbox.blockkit import Problem, limits, validate_message
from tests.sandbox.blockkit.charts import (
    CHARTS,
    DAYS,
    axis_chart,
    chart,
    pie_chart,
    series,
)


def judge(block: Any) -> list[Problem]:
    return validate_message([block], "text")


def places(block: Any) -> list[str]:
    return [one.pointer.removeprefix("/blocks/0") for one in judge(block)]


def axis_of(categories: list[str], *labels: str) -> dict[str, Any]:
    points = [{"label": label, "value": 1} for label in labels]
    return axis_chart("bar", {"name": "x", "data": points}, categories=categories)


def test_a_chart_is_a_pie_bars_areas_or_lines() -> None:
    assert [name for name, block in CHARTS.items() if judge(block)] == []

    (found,) = judge(chart(type="scatter", segments=[]))

    assert found.pointer == "/blocks/0/chart/type"
    assert "known are area, bar, line, pie" in found.message


@pytest.mark.parametrize(
    ("block", "place"),
    [
        (CHARTS["bar"] | {"title": "x" * 51}, "/title"),
        (pie_chart(("x" * 21, 1)), "/chart/segments/0/label"),
        (axis_chart("bar", series("x" * 21, 1, 2, 3)), "/chart/series/0/name"),
        (
            axis_chart("bar", series("x", 1, 2, 3), x_label="x" * 51),
            "/chart/axis_config/x_label",
        ),
        (
            axis_chart("bar", series("x", 1, 2, 3), y_label="x" * 51),
            "/chart/axis_config/y_label",
        ),
        (axis_of(["x" * 21], "x"), "/chart/axis_config/categories/0"),
        (axis_of(["x"], "x" * 21), "/chart/series/0/data/0/label"),
    ],
)
def test_each_text_of_a_chart_has_a_length(block: Any, place: str) -> None:
    shorter = json.dumps(block).replace("x" * 51, "x" * 50).replace("x" * 21, "x" * 20)

    assert places(block) == [place]
    # With one letter less, its length is no problem any more.
    assert all("characters" not in one.message for one in judge(json.loads(shorter)))


def test_a_chart_has_12_series_of_20_points() -> None:
    def drawn(count: int, points: int) -> dict[str, Any]:
        labels = [f"at {n}" for n in range(points)]
        data = [{"label": label, "value": 0} for label in labels]
        made = [{"name": f"one {n}", "data": data} for n in range(count)]
        return axis_chart("line", *made, categories=labels)

    assert judge(drawn(limits.CHART_SERIES, limits.CHART_POINTS)) == []
    assert places(drawn(13, 1)) == ["/chart/series"]
    assert places(drawn(1, 21)) == [
        "/chart/series/0/data",
        "/chart/axis_config/categories",
    ]
    assert judge(pie_chart(*[(f"{n}", 1) for n in range(12)])) == []
    assert places(pie_chart(*[(f"{n}", 1) for n in range(13)])) == ["/chart/segments"]


@pytest.mark.parametrize("value", [0, -1])
def test_a_segment_is_greater_than_nothing(value: float) -> None:
    assert places(pie_chart(("a", 1), ("b", value))) == ["/chart/segments/1/value"]


@pytest.mark.parametrize("value", [math.inf, math.nan, 10**400, True])
def test_a_value_is_a_finite_number(value: Any) -> None:
    assert places(pie_chart(("a", value))) == ["/chart/segments/0/value"]
    assert places(axis_chart("bar", series("x", 1, value, 3))) == [
        "/chart/series/0/data/1/value"
    ]


def test_categories_and_names_of_series_differ() -> None:
    twice = axis_chart("bar", series("x", 1, 2, 3), series("x", 1, 2, 3))

    assert places(twice) == ["/chart/series/1"]
    assert places(axis_of(["a", "b", "a"], "a", "b")) == [
        "/chart/axis_config/categories/2"
    ]


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (("a", "b"), []),
        (("b", "a"), []),
        (("a",), ["/chart/series/0/data"]),
        (("a", "b", "c"), ["/chart/series/0/data/2/label"]),
        (("a", "b", "b"), ["/chart/series/0/data/2/label"]),
        (("a", "a"), ["/chart/series/0/data/1/label", "/chart/series/0/data"]),
    ],
)
def test_a_series_has_one_point_in_each_category(
    labels: tuple[str, ...], found: list[str]
) -> None:
    assert places(axis_of(["a", "b"], *labels)) == found


def test_the_limit_of_a_message_counts_the_texts_of_a_chart() -> None:
    names = [f"{n:020}" for n in range(limits.CHART_SERIES)]
    full = axis_chart("bar", *[series(name, 1, 2, 3) for name in names])
    size = len(full["title"]) + sum(20 + sum(map(len, DAYS)) for _ in names)
    section = {"type": "section", "text": {"type": "plain_text", "text": "x" * 3000}}
    left = limits.TEXT_IN_ALL_BLOCKS - 3 * 3000 - size
    last = {"type": "plain_text", "text": "x" * left}
    fits: list[Any] = [section] * 3 + [{"type": "section", "text": last}, full]

    assert validate_message(fits, "text") == []
    last["text"] += "x"
    assert [one.code for one in validate_message(fits, "text")] == [
        "msg_blocks_too_long"
    ]
