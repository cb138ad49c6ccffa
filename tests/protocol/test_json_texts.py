"""An edit of an argument that is JSON as text may have blanks, and runs."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from pydantic import BaseModel, Json

from keyturn.agent.calls import schema_of
from keyturn.agent.canonical import canonical_args
from keyturn.agent.prepared_calls import runnable
from keyturn.bot.modals import edit
from keyturn.bot.modals.form import read_form
from keyturn.gateway.errors import NotStarted
from keyturn.gateway.protocol.edits import compacted
from tests.bot.samples import an_approval, an_item, frame
from tests.bot.slack_state import typed, untouched


class Order(BaseModel):
    """Has JSON as text further down."""

    rows: list[Json[dict[str, int]] | None]
    note: str = ""


class Tree(BaseModel):
    """Refers to itself."""

    value: Json[list[int]]
    below: list[Tree] = []


def noting(kind: Any) -> BaseTool:
    """Return a tool whose one argument has this type."""

    def note(value: Any) -> str:
        return repr(value)

    note.__annotations__["value"] = kind
    return tool(note, description="Note it.")


NONE: list[Any] = []
TREE: dict[str, Any] = {"value": "[1]", "below": [{"value": "[2]", "below": NONE}]}
SPELLINGS: list[tuple[Any, Any, Any]] = [
    (Json[dict[str, int]], '{"a":1}', '{ "a" : 2 }'),
    (Json[dict[str, int]], '{"a":1}', '{"b": 2,\n "a": 1}'),
    (Json[list[str]], "[]", '["\\u00e4", "b"]'),
    (Json[list[int]] | None, None, "[ 1 ]"),
    (Order, {"rows": [None]}, {"rows": ['{"a": 1}', None], "note": ' {"a": 1}'}),
    (Tree, TREE, {"value": "[ ]", "below": [{"value": "[1, 2]", "below": []}]}),
    (dict[str, Json[list[int]]], {"a": "[1]"}, {"a": "[1]", "b": "[ 1 ]"}),
]


@pytest.mark.parametrize(("kind", "before", "after"), SPELLINGS)
def test_another_spelling_is_written_as_the_tool_writes_it_and_runs(
    kind: Any, before: Any, after: Any
) -> None:
    one = noting(kind)
    given = canonical_args(one, {"value": before})
    with pytest.raises(NotStarted):
        runnable("note", one, {"value": after})

    found = compacted(schema_of(one), given, {"value": after})

    assert runnable("note", one, found) is one


LEFT: list[tuple[Any, Any, Any]] = [
    (Json[dict[str, int]], '{"a":1}', '{"a": 1, "a": 1}'),
    (Json[dict[str, int]], '{"a":1}', '{"a": 1'),
    (str, "x", '{"a": 1}'),
    (Json[list[int]] | str, "x", "[ 1 ]"),
    (Json[list[int]] | Any, "x", "[ 1 ]"),
    (Json[list[float]], "[0.1]", "[ 0.1234567890123456789 ]"),
    (Json[list[float]], "[0.1]", "[ 1e-400 ]"),
    (Json[list[float]], "[0.1]", f"[ 1e-{'9' * 20} ]"),
]


@pytest.mark.parametrize(("kind", "before", "after"), LEFT)
def test_what_is_no_json_or_may_be_another_text_stays(
    kind: Any, before: Any, after: Any
) -> None:
    args = {"value": after}

    assert compacted(schema_of(noting(kind)), {"value": before}, args) == args


def test_a_text_that_was_spelled_otherwise_keeps_the_blanks_that_people_write() -> None:
    schema: Any = {
        "properties": {"x": {"type": "string", "contentMediaType": "application/json"}}
    }

    digits = f"[0.{'1' * 30}]"
    assert compacted(schema, {"x": digits}, {"x": "[ 2 ]"}) == {"x": "[ 2 ]"}
    for after in ('{"a": 1}', '{"a": 2}'):
        assert compacted(schema, {"x": '{"a": 1}'}, {"x": after}) == {"x": after}
    assert compacted(None, {"x": "[1]"}, {"x": "[ 2 ]"}) == {"x": "[ 2 ]"}


def test_a_form_writes_the_text_as_the_tool_does() -> None:
    schema = schema_of(noting(Json[dict[str, int]]))
    item = an_item({"value": '{"a":1}'}, args_schema=schema)
    state = untouched(edit.view(frame(an_approval(item)), 0)["blocks"])
    (field,) = (name for name in state if name.startswith("field:"))

    changed = read_form(item, typed(state, field, '{ "a": 2 }'))
    same = read_form(item, typed(state, field, '{ "a": 1 }'))

    assert changed.args == {"value": '{"a":2}'}
    assert changed.changed
    assert not same.changed
