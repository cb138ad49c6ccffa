"""JSON Schema of the answers to one question of an agent, made without a model of it.

A pydantic model for each question, with its schema, takes milliseconds to make. What
differs between two questions are three members, so one schema of all answers is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from pydantic import JsonValue

from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import Answer, ReconcileAnswer

_TITLES = {Answer: "ApprovalAnswer", ReconcileAnswer: "ReconcileAnswer"}

Kind = type[Answer] | type[ReconcileAnswer]


def answer_schema(
    kind: Kind, *, types: Sequence[str], item_id: str, action_hash: str
) -> JsonObject:
    """Return the schema of the answers to one question.

    Args:
        kind: of answers.
        types: what they may be, as in their ``type``.
        item_id: the call that is asked about.
        action_hash: that of its request.
    """
    every = _of_every_question(kind)
    asked: JsonObject = {
        # As plain texts: a checkpoint would keep members of an enumeration as such.
        "type": {
            "enum": [str(one) for one in types],
            "title": "Type",
            "type": "string",
        },
        "item_id": {"const": item_id, "title": "Item Id", "type": "string"},
        "action_hash": {"const": action_hash, "title": "Action Hash", "type": "string"},
    }
    properties = cast("JsonObject", every["properties"])
    return {**every, "properties": {**properties, **asked}}


def takes(schema: JsonObject, kind: Kind, answer: JsonObject) -> bool | None:
    """Return whether a schema takes an answer; None if it is none of `answer_schema`.

    ``answer`` was dumped from a record of ``kind``, so only what differs between two
    questions is compared.
    """
    types = _word(schema, "type", "enum")
    item_id, action_hash = (
        _word(schema, name, "const") for name in ("item_id", "action_hash")
    )
    if not isinstance(types, list):
        return None
    ours = answer_schema(
        kind,
        types=cast("list[str]", types),
        item_id=str(item_id),
        action_hash=str(action_hash),
    )
    # Also unequal where any of the three was no string.
    if schema != ours:
        return None
    return (
        answer["type"] in types
        and answer["item_id"] == item_id
        and answer["action_hash"] == action_hash
    )


def _word(schema: JsonObject, member: str, word: str) -> JsonValue:
    """Return what a schema says of a member by one keyword; None: nothing."""
    properties = schema.get("properties")
    found = properties.get(member) if isinstance(properties, dict) else None
    return found.get(word) if isinstance(found, dict) else None


@cache
def _of_every_question(kind: Kind) -> JsonObject:
    schema: dict[str, Any] = kind.model_json_schema()
    # In place of each reference: pydantic takes no schema with references to its own
    # definitions from a class.
    named: dict[str, Any] = schema.pop("$defs", {})
    del schema["description"]
    schema["title"] = _TITLES[kind]
    return cast("JsonObject", _inlined(schema, named))


def _inlined(schema: object, named: Mapping[str, Any]) -> object:
    if isinstance(schema, list):
        return [_inlined(one, named) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    members = cast("dict[str, object]", schema)
    name = str(members.get("$ref", "")).removeprefix("#/$defs/")
    if name in named:
        return _inlined(named[name], named)
    return {key: _inlined(value, named) for key, value in members.items()}
