"""The schema of an answer is that of a model of it, and takes the same answers."""

from __future__ import annotations

from typing import Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import create_model

from twokey.gateway.protocol.answer_schema import answer_schema, takes
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import Answer, AnswerKind, ReconcileAnswer

HASH = "sha256:" + "1" * 64
KINDS = st.lists(st.sampled_from(AnswerKind), min_size=2, unique=True)

answers = st.builds(
    Answer,
    type=st.sampled_from(AnswerKind),
    item_id=st.sampled_from(["ap0.0", "ap0.1"]),
    action_hash=st.sampled_from([HASH, "other"]),
    args=st.none() | st.just({"amount": 1}),
    message=st.sampled_from(["", "ok"]),
    by=st.none() | st.builds(Person, team=st.just("T0"), user=st.just("U0ANA")),
    answers=st.none() | st.just(("yes",)),
)


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
    """Return what an older version shows of its pydantic model of an answer."""

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


def test_threads_that_an_older_version_paused_have_the_same_schema() -> None:
    kinds = [AnswerKind.APPROVE, AnswerKind.EDIT, AnswerKind.EXPIRED]

    made = answer_schema(Answer, types=kinds, item_id="ap0.0", action_hash=HASH)

    assert made == of_a_model(kinds)
    # A checkpoint would keep members of an enumeration, and not read them.
    shown: Any = made["properties"]
    assert [type(one) for one in shown["type"]["enum"]] == [str] * 3


@given(answers, KINDS)
def test_an_answer_is_taken_where_the_schema_takes_it(
    answer: Answer, kinds: list[AnswerKind]
) -> None:
    schema = answer_schema(Answer, types=kinds, item_id="ap0.0", action_hash=HASH)
    body = answer.model_dump(mode="json")

    validator: Any = Draft202012Validator(schema)
    assert takes(schema, Answer, body) is validator.is_valid(body)


@pytest.mark.parametrize(
    "changes",
    [
        {"required": ["more"]},
        {"properties": {}},
        {"properties": {"type": 7}},
        {"properties": 7},
        {"maxProperties": 1},
    ],
)
def test_of_any_other_schema_nothing_is_said(changes: JsonObject) -> None:
    about: Any = {"types": ["approve", "edit"], "item_id": "ap0.0", "action_hash": HASH}
    schema = answer_schema(Answer, **about)
    answer = Answer(type=AnswerKind.APPROVE, item_id="ap0.0", action_hash=HASH)
    body = answer.model_dump(mode="json")

    assert takes(schema, Answer, body) is True
    assert takes({**schema, **changes}, Answer, body) is None
    assert takes(answer_schema(ReconcileAnswer, **about), Answer, body) is None
    assert takes({**schema, "properties": [1]}, Answer, body) is None
    assert takes({}, Answer, body) is None
