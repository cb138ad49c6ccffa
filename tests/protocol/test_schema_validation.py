"""Arguments are checked in bounded time, and unchecked ones are refused."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from keyturn.gateway.protocol.edits import TOO_LONG, argument_errors
from keyturn.gateway.protocol.schema_validation import (
    checkable,
    matches,
    problems,
    unmatched,
)
from keyturn.gateway.protocol.strict_json import JsonObject

TREE: JsonObject = {
    "properties": {"x": {"$ref": "#/$defs/t"}},
    "$defs": {"t": {"properties": {"of": {"$ref": "#/$defs/t"}}}},
}


def nested(depth: int) -> JsonObject:
    args: JsonObject = {}
    for _ in range(depth):
        args = {"of": args}
    return {"x": args}


def test_a_check_that_exceeds_its_budget_says_so() -> None:
    wide: JsonObject = {"x": [{"of": {}} for _ in range(4_000)]}
    schema: JsonObject = {**TREE, "properties": {"x": {"items": {"$ref": "#/$defs/t"}}}}

    assert argument_errors(TREE, nested(40)) == {}
    assert argument_errors(schema, wide) == {"": TOO_LONG}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"pattern": "^a+$"}, ["aa", 7], ["ab"]),
        (
            {
                "patternProperties": {"^n": {"type": "number"}},
                "additionalProperties": {"type": "string"},
            },
            [{"n1": 1, "x": "a"}, "text", ["n1"]],
            [{"n1": "a"}, {"x": 1}],
        ),
        (
            {"patternProperties": {"^n": {}}, "additionalProperties": False},
            [{"n1": 1}, "text"],
            [{"n1": 1, "x": 1}],
        ),
        ({"uniqueItems": True}, [[1, "1", True], "aa"], [[1, 1.0], [[2], [2]]]),
        ({"uniqueItems": False}, [[1, 1]], []),
        ({"uniqueItems": True}, [], [[2**63, 1]]),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^a"},
            ["ab"],
            ["b"],
        ),
    ],
)
def test_a_keyword_says_what_json_schema_says(
    schema: JsonObject, right: list[JsonValue], wrong: list[JsonValue]
) -> None:
    whole: JsonObject = {"type": "object", "properties": {"x": schema}}

    for value in right:
        assert argument_errors(whole, {"x": value}) == {}
    for value in wrong:
        assert argument_errors(whole, {"x": value})


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ({"patternProperties": {"^a": True}, "pattern": "^b"}, ""),
        ({"items": {"pattern": "(?=a)b"}}, "(?=a)b"),
        ({"patternProperties": {"(?!a)": True}}, "(?!a)"),
        ({"patternProperties": {"^a": True}, "unevaluatedProperties": False}, "^a"),
        ({"patternProperties": [], "pattern": 7}, ""),
    ],
)
def test_a_slow_pattern_is_named(schema: JsonObject, pattern: str) -> None:
    assert unmatched(schema) == pattern


def test_only_a_text_matches_a_pattern() -> None:
    assert matches("abc", "b")
    assert not matches("abc", "^b")
    with pytest.raises(TypeError):
        matches(7, "7")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a pattern in RE2 syntax"):
        matches("a", "(")


# Only a pattern that we cannot match is omitted from a check.

LOOK_AHEAD = r"^(?!-)\d+$"


def test_only_the_pattern_with_a_look_ahead_is_left_out_of_a_copy() -> None:
    amount: JsonObject = {"type": "string", "pattern": LOOK_AHEAD}
    plain_id: JsonObject = {"type": "string", "pattern": r"^\d+$"}
    schema: JsonObject = {"properties": {"amount": amount, "id": plain_id}}

    plain = checkable(schema)

    assert plain["properties"] == {"amount": {"type": "string"}, "id": plain_id}
    assert amount["pattern"] == LOOK_AHEAD, "the tool's own schema stays as it is"
    assert not list(problems(plain, {"amount": "-1", "id": "7"}))
    assert list(problems(plain, {"amount": "1", "id": "x"}))
