"""What a tool returned can be stored as JSON and given back as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.types import Command, Send

from keyturn.agent import result_codec
from keyturn.agent.result_codec import ToolResult

TOLD = ToolMessage("hello", tool_call_id="c1", name="pay", artifact={"a": [1]})
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


RESULTS: list[Any] = [
    TOLD,
    ToolMessage([{"type": "text", "text": "x"}], tool_call_id="c1"),
    Command(update={"messages": [TOLD], "files": {"a": ("b", None)}}, goto="x"),
    Command(goto=[Send("node", {"x": HumanMessage("hi")})], graph=Command.PARENT),
    Command(update={"$": "message", "is": 1}),
    [TOLD, Command(update={"pages": ["a"]})],
]


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_comes_back_as_it_was(result: ToolResult) -> None:
    stored = result_codec.serialize(result, [])

    restored = result_codec.deserialize(stored.payload)

    assert restored == (result, [])


@given(PLAIN)
def test_any_plain_state_update_comes_back_as_it_was(value: Any) -> None:
    result: ToolResult = Command(update={"x": value})

    assert result_codec.deserialize(result_codec.serialize(result, []).payload) == (
        result,
        [],
    )


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "[" * 100_000,
        '{"result": {"$": "send", "is": []}, "inside": []}',
        "{",
        "{}",
        "[]",
        '{"result": 1, "inside": []}',
        '{"result": {"$": "eval", "is": []}, "inside": []}',
        '{"result": {"$": "message", "is": {}}, "inside": []}',
        '{"result": {"$": "command", "is": [1]}, "inside": []}',
        '{"result": {"$": "command", "is": null}, "inside": []}',
        '{"result": [], "inside": [{"v": 1}]}',
    ],
)
def test_a_payload_that_is_not_ours_is_no_result(payload: str) -> None:
    assert result_codec.deserialize(payload) is None


def nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [nested(100_000), cyclic()], ids=["deep", "cyclic"])
def test_a_result_of_any_shape_can_be_recorded(value: Any) -> None:
    update = result_codec.serialize(Command(update={"x": value}), [])
    message = ToolMessage("paid", tool_call_id="c1", artifact=value)
    artifact = result_codec.serialize(message, [])

    assert (update.ok, update.payload) == (True, "")
    assert artifact.summary == "paid"
    restored = result_codec.deserialize(artifact.payload)
    assert restored
    assert restored[0] == ToolMessage("paid", tool_call_id="c1")


def test_a_result_that_is_too_large_is_kept_without_its_payload() -> None:
    stored = result_codec.serialize(ToolMessage("x" * 2**20, tool_call_id="c1"), [])

    assert stored.payload == ""
    assert len(stored.summary) == result_codec.SUMMARY_CHARS


def test_an_update_of_the_state_goes_along_with_any_result() -> None:
    plain: Any = Command(update={"x": 1})
    upwards: Any = Command(update={"x": 1}, graph=Command.PARENT)
    pairs: Any = Command(update=[("x", 1)])
    extra = {"facts": [1]}

    assert result_codec.with_state(TOLD, extra) == Command(
        update={"messages": [TOLD], "facts": [1]}
    )
    assert result_codec.with_state(plain, extra) == Command(
        update={"x": 1, "facts": [1]}
    )
    for whole in (upwards, pairs):
        assert result_codec.with_state(whole, extra) == [whole, Command(update=extra)]
    assert result_codec.with_state([TOLD], extra) == [TOLD, Command(update=extra)]


def test_a_state_update_with_keys_that_are_no_strings_is_not_kept() -> None:
    assert result_codec.serialize(Command(update={"x": {1: 2}}), []).payload == ""
