"""The schema of an answer is that of a pydantic model of it."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import create_model

from keyturn.agent.interrupts import answer_schema
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Answer, AnswerKind

HASH = "sha256:" + "1" * 64


def inlined(schema: object, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [inlined(one, named) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    members = cast("dict[str, object]", schema)
    if "$ref" in members:
        return inlined(named[str(members["$ref"]).rpartition("/")[2]], named)
    return {key: inlined(value, named) for key, value in members.items()}


def of_a_model(kinds: list[AnswerKind]) -> JsonObject:
    """Return the schema of a pydantic model of an answer."""

    class Bound(Answer):
        pass

    fields: dict[str, Any] = {
        "type": (Literal[tuple(kinds)], ...),
        "item_id": (Literal["ap0.0"], ...),
        "action_hash": (Literal[HASH], ...),
    }
    model: Any = create_model("ApprovalAnswer", __base__=Bound, **fields)
    schema = model.model_json_schema()
    shown: JsonObject = inlined(schema, schema.pop("$defs", {}))
    return shown


def test_the_schema_is_that_of_a_pydantic_model() -> None:
    kinds = [AnswerKind.APPROVE, AnswerKind.EDIT, AnswerKind.EXPIRED]

    made = answer_schema(Answer, types=kinds, item_id="ap0.0", action_hash=HASH)

    assert made == of_a_model(kinds)
    # A checkpoint would keep members of an enumeration, and not read them.
    shown: Any = made["properties"]
    assert [type(one) for one in shown["type"]["enum"]] == [str] * 3
