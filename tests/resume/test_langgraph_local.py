"""LangGraph's states and errors are translated for people."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph

from keyturn.agent import connected
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.thread_state import AnswerRefused
from keyturn.gateway.service.run.agents import AgentService
from tests.resume import sample_tools
from tests.resume.resume_stack import RULES, Stack

_REFUSAL = {"type": "refusal", "refusal": "I can't help."}
REFUSALS = [
    # OpenAI's chat completions, its responses, and those in LangChain's own format.
    AIMessage("", additional_kwargs={"refusal": "I can't help."}),
    AIMessage([_REFUSAL]),
    AIMessage([{"type": "non_standard", "value": _REFUSAL}]),
]


@pytest.fixture
async def waiting(stack: Stack) -> AsyncGenerator[Runner]:
    """Give a runner whose thread t1 asks about a refund."""
    with connected(AgentService(stack.store, lambda: RULES)):
        call = '[["refund", {"order": "1", "amount": 2}]]'
        await stack.runner.start("t1", call, key="k")
        yield stack.runner


async def test_a_question_that_is_not_open_is_refused_as_stale(
    waiting: Runner,
) -> None:
    with pytest.raises(AnswerRefused, match="asks something else") as caught:
        await waiting.resume("t1", {"f" * 32: {"type": "approve"}}, key="k")

    assert caught.value.is_stale
    assert len((await waiting.probe("t1")).pending) == 1


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"type": "approve"},
        {"type": "approve", "item_id": "other", "action_hash": "other"},
        {"decisions": [{"type": "approve"}]},
    ],
)
async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays(
    stack: Stack, waiting: Runner, answer: JsonObject
) -> None:
    [question] = (await waiting.probe("t1")).pending
    with pytest.raises(AnswerRefused, match="does not fit") as caught:
        await waiting.resume("t1", {question.id: answer}, key="k")
    assert not caught.value.is_stale
    assert sample_tools.ledger() == []

    [item] = await stack.items()
    await stack.decide(item)
    [item] = await stack.items()
    good = answer_for(item)
    assert good
    [question] = (await waiting.probe("t1")).pending
    await waiting.resume("t1", {question.id: good.model_dump(mode="json")}, key="k")

    assert (await waiting.probe("t1")).final_message == "refunded 1 2"


async def test_an_error_of_the_graph_is_not_taken_for_a_refused_answer(
    stack: Stack, waiting: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_results: list[str]) -> str:
        raise RuntimeError("the model is down")

    monkeypatch.setattr(sample_tools, "after_tools", down)
    [item] = await stack.items()
    await stack.decide(item)
    [item] = await stack.items()
    good = answer_for(item)
    assert good
    [question] = (await waiting.probe("t1")).pending

    with pytest.raises(RuntimeError, match="model is down"):
        await waiting.resume("t1", {question.id: good.model_dump(mode="json")}, key="k")

    state = await waiting.probe("t1")
    assert (state.is_cut_off, state.taken) == (True, "k")


async def test_a_thread_that_nobody_began_does_not_exist(stack: Stack) -> None:
    assert not (await stack.runner.probe("new")).exists


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([HumanMessage("hi"), AIMessage("hello")], "hello"),
        ([AIMessage("old"), HumanMessage("hi"), AIMessage("")], ""),
        (
            [
                HumanMessage("hi"),
                AIMessage("let me see"),
                ToolMessage("42", tool_call_id="c"),
                AIMessage([{"type": "text", "text": "it is 42"}]),
            ],
            "it is 42",
        ),
        (
            [
                HumanMessage("hi"),
                AIMessage("", tool_calls=[{"name": "t", "args": {}, "id": "c"}]),
                ToolMessage("returned directly", tool_call_id="c"),
            ],
            "returned directly",
        ),
        *(
            ([HumanMessage("hi"), AIMessage("let me see"), refused], "I can't help.")
            for refused in REFUSALS
        ),
        ([], ""),
    ],
)
async def test_the_last_words_are_those_since_the_person_spoke(
    messages: list[Any], words: str
) -> None:
    builder: StateGraph[MessagesState] = StateGraph(MessagesState)
    builder.add_node("say", _nothing)  # pyright: ignore[reportUnknownMemberType] - its overloads are partial
    builder.set_entry_point("say")
    compiled: Any = builder.compile()  # pyright: ignore[reportUnknownMemberType] - as above
    runner = Runner(attached(compiled, InMemorySaver()))

    await runner.give("t", {"messages": messages}, key="k")

    state = await runner.probe("t")
    assert (state.is_finished, state.final_message) == (True, words)


def _nothing(state: MessagesState) -> dict[str, object]:
    return {}
