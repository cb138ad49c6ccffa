"""Only a pattern that we cannot match is omitted from a check."""

from __future__ import annotations

from keyturn.gateway.protocol.schema_validation import checkable, problems
from keyturn.gateway.protocol.strict_json import JsonObject

LOOK_AHEAD = r"^(?!-)\d+$"


def test_a_schema_without_such_a_pattern_is_the_same_object() -> None:
    schema: JsonObject = {"properties": {"id": {"pattern": r"^\d+$"}}}

    assert checkable(schema) is schema


def test_only_the_pattern_with_a_look_ahead_is_left_out_of_a_copy() -> None:
    amount: JsonObject = {"type": "string", "pattern": LOOK_AHEAD}
    plain_id: JsonObject = {"type": "string", "pattern": r"^\d+$"}
    schema: JsonObject = {"properties": {"amount": amount, "id": plain_id}}

    plain = checkable(schema)

    assert plain["properties"] == {"amount": {"type": "string"}, "id": plain_id}
    assert amount["pattern"] == LOOK_AHEAD, "the tool's own schema stays as it is"
    assert not list(problems(plain, {"amount": "-1", "id": "7"}))
    assert list(problems(plain, {"amount": "1", "id": "x"}))
