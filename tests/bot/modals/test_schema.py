"""A schema gets a separate input only if nothing can be lost in it."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.modals.form import BadInput, raw_value
from keyturn.bot.modals.schema import ABSENT, Kind, is_same, plan, required, resolved

ROOT: Any = {
    "$defs": {
        "name": {"type": "string", "maxLength": 5},
        "loop": {"$ref": "#/$defs/loop"},
        "again": {"$ref": "#/$defs/name"},
        "a/b": {"type": "integer"},
        "text": "no schema",
    }
}
STRING = {"type": "string"}
DATE = STRING | {"format": "date"}
DATE_TIME = STRING | {"format": "date-time"}
TEXTS = {"type": "array", "items": STRING}
CHOICES = {"type": "array", "items": {"enum": ["a"]}}
EITHER = {"anyOf": [{"type": "number"}, STRING]}


@pytest.mark.parametrize(
    ("schema", "value", "kind"),
    [
        ({"$ref": "#/$defs/again"}, "x", Kind.TEXT),
        ({"$ref": "#/$defs/a~1b"}, 1, Kind.INTEGER),
        ({"$ref": "#/$defs/loop"}, "x", Kind.JSON),
        ({"$ref": "https://example.com/s.json"}, "x", Kind.JSON),
        ({"$ref": 7}, "x", Kind.JSON),
        ({}, "x", Kind.JSON),
        (STRING | {"not": {"const": "x"}}, "y", Kind.JSON),
        ({"type": ["string", "number"]}, "x", Kind.JSON),
        ({"type": ["string", "null"]}, None, Kind.TEXT),
        (STRING, None, Kind.JSON),
        (STRING, ABSENT, Kind.TEXT),
        (STRING, "x" * 81, Kind.LONG_TEXT),
        (STRING, "two\nlines", Kind.LONG_TEXT),
        ({"type": "integer"}, 2.5, Kind.JSON),
        ({"type": "number"}, True, Kind.JSON),
        ({"type": "number"}, 1e-30, Kind.NUMBER),
        ({"type": "number"}, 5e-324, Kind.JSON),
        ({"type": ["boolean", "null"]}, True, Kind.FLAG),
        (DATE, "2026-11-21", Kind.DATE),
        (DATE, "2026-02-30", Kind.TEXT),
        (DATE, "2026\u200b", Kind.JSON),
        (STRING | {"format": "time"}, "14:30:00", Kind.TEXT),
        (DATE_TIME, "2026-11-30T14:30:00+01:00", Kind.MOMENT),
        (DATE_TIME, "2026-11-30T14:30:00", Kind.TEXT),
        (DATE_TIME, "2026-11-30T14:30:09Z", Kind.TEXT),
        (DATE_TIME, "1970-01-01T00:00:00Z", Kind.TEXT),
        ({"const": "x"}, "x", Kind.CHOICE),
        ({"enum": ["x", None]}, None, Kind.CHOICE),
        ({"enum": "x"}, "x", Kind.JSON),
        ({"enum": ["x"]}, "y", Kind.JSON),
        ({"enum": ["x" * 76, "y"]}, "y", Kind.JSON),
        ({"enum": list(range(100))}, 5, Kind.JSON),
        ({"enum": list(range(99))}, 5, Kind.CHOICE),
        (CHOICES, ["a"], Kind.CHOICES),
        (CHOICES, ["a", "a"], Kind.JSON),
        (TEXTS, ["b", "b"], Kind.LINES),
        (TEXTS, [], Kind.LINES),
        (TEXTS, ["a", ""], Kind.JSON),
        (TEXTS, [" a"], Kind.JSON),
        (TEXTS, ["a\nb"], Kind.JSON),
        ({"type": "array", "items": {"type": "number"}}, [1], Kind.JSON),
        (EITHER, "x", Kind.TEXT),
        (EITHER, 12.25, Kind.NUMBER),
        (EITHER, True, Kind.JSON),
        ({"oneOf": [{"type": "object"}, {"type": "null"}]}, {}, Kind.JSON),
    ],
)
def test_the_input_fits_schema_and_value(schema: Any, value: Any, kind: Kind) -> None:
    assert plan(schema, value, ROOT).kind is kind


def test_what_stands_beside_a_reference_holds_too() -> None:
    found = resolved({"$ref": "#/$defs/name", "maxLength": 3}, ROOT)

    assert found == {"type": "string", "maxLength": 3}


def test_required_names_are_names_only() -> None:
    assert required({"required": ["a", 1]}, {}, {}) == {"a"}
    assert required({"required": "a"}, {}, {}) == frozenset()


def test_true_is_not_one() -> None:
    assert not is_same(True, 1)  # noqa: FBT003 - the value is the point
    assert is_same(1, 1.0)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ({"value": 1}, Kind.TEXT),
        ({"selected_option": "x"}, Kind.CHOICE),
        ({"selected_options": [1]}, Kind.CHOICES),
        ({"selected_date": 1}, Kind.DATE),
    ],
)
def test_a_state_of_another_shape_is_answered(state: Any, kind: Kind) -> None:
    with pytest.raises(BadInput, match="submit again"):
        raw_value(state, kind)
