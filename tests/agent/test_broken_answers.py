"""An answer that breaks off or cannot be read runs nothing that the model did not ask.

The answers are those that LangChain's models of OpenAI and Anthropic made of what the
providers may send.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    InvalidToolCall,
)
from langchain_core.messages.tool import tool_call_chunk
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import is_cut_off
from keyturn.agent.scripted_model import calling
from keyturn.agent.turns import NO_ID
from keyturn.gateway.protocol.records import Tier
from tests.agent import providers
from tests.agent.agent_runner import FREE, Effects, Runner, build, by_call, results
from tests.agent.fake_gateway import FakeGateway

OPENAI = {"model_provider": "openai"}
ANTHROPIC = {"model_provider": "anthropic", "model_name": "claude-sonnet-4-5"}
BAD = InvalidToolCall(
    name="look_up",
    args='{"query": bread}',
    id="c1",
    error="Function look_up arguments are not valid JSON.",
    type="invalid_tool_call",
)


def streamed(about: dict[str, Any]) -> AIMessage:
    """Return what LangChain makes of a stream with a whole call and a part of one."""
    chunks = [
        tool_call_chunk(name="look_up", args=args, id=f"c{index}", index=index)
        for index, args in enumerate(('{"query": "whole"}', '{"query": "cut o'))
    ]
    calls = AIMessageChunk(content="", tool_call_chunks=chunks).tool_calls
    assert calls[1]["args"] == {"query": "cut o"}
    return AIMessage("", tool_calls=calls, response_metadata=about)


def unreadable(*calls: InvalidToolCall, good: AIMessage | None = None) -> AIMessage:
    """Return what LangChain makes of an answer with calls that are no JSON."""
    return AIMessage(
        "",
        tool_calls=good.tool_calls if good else [],
        invalid_tool_calls=list(calls),
        response_metadata={**OPENAI, "finish_reason": "tool_calls"},
    )


@pytest.mark.parametrize(
    "about",
    [
        OPENAI,  # the stream ended early, as behind a proxy that closes it
        ANTHROPIC,
        {**OPENAI, "finish_reason": "content_filter"},
        {**OPENAI, "status": "incomplete", "incomplete_details": {"reason": "x"}},
        {**ANTHROPIC, "stop_reason": "refusal"},
        {"stopReason": "guardrail_intervened"},
        {"finish_reason": "MAX_TOKENS"},
        {"stop_reason": "max_tokens"},
        {"incomplete_details": {"reason": "max_output_tokens"}},
    ],
)
async def test_the_last_call_of_an_answer_that_broke_off_does_not_run_or_ask(
    runner: Runner, memory: InMemorySaver, effects: Effects, about: dict[str, Any]
) -> None:
    gateway = FakeGateway(FREE)
    graph = build(gateway, effects.tools(), streamed(about), saver=memory)

    end = await runner.say(graph, "look")

    assert effects.looked == ["whole"]
    told = by_call(end)["c1"].text
    assert "may be cut off" in told or "token limit" in told
    assert end["messages"][-1].text == "done"
    assert is_cut_off(streamed(about))


@pytest.mark.parametrize(
    "about",
    [
        {},
        {**OPENAI, "finish_reason": "tool_calls"},
        {**OPENAI, "status": "completed", "incomplete_details": None},
        {**ANTHROPIC, "stop_reason": "tool_use"},
        {"model_provider": "somebody else"},
    ],
)
async def test_an_answer_that_came_to_its_end_is_whole(
    runner: Runner, memory: InMemorySaver, effects: Effects, about: dict[str, Any]
) -> None:
    graph = build(FakeGateway(FREE), effects.tools(), streamed(about), saver=memory)

    await runner.say(graph, "look")

    assert sorted(effects.looked) == ["cut o", "whole"]
    assert not is_cut_off(streamed(about))


async def test_a_model_is_told_of_a_call_that_nobody_can_read_and_goes_on(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(FREE)
    again = calling(("look_up", {"query": "bread"}, "c2"))
    graph = build(gateway, effects.tools(), unreadable(BAD), again, saver=memory)

    end = await runner.say(graph, "look")

    told = by_call(end)["c1"]
    assert "not a JSON object" in told.text
    assert told.status == "error"
    assert effects.looked == ["bread"]
    assert end["messages"][-1].text == "done"


async def test_no_tool_runs_without_the_arguments_that_nobody_could_read(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway({**FREE, "pay": Tier.AUTO})
    bad = InvalidToolCall(
        name="pay", args="[1]", id="c2", error=None, type="invalid_tool_call"
    )
    good = calling(("look_up", {"query": "whole"}, "c3"))
    graph = build(
        gateway, effects.tools(), unreadable(BAD, bad, good=good), saver=memory
    )

    end = await runner.say(graph, "look")

    assert effects.looked == ["whole"]
    assert effects.paid == []
    assert [call.tool for turn, _ in gateway.turns.values() for call in turn.calls] == [
        "look_up"
    ]
    for provider, payload in providers.payloads(end["messages"]).items():
        assert providers.problems(provider, payload) == []


async def test_of_an_answer_that_broke_off_none_of_the_last_calls_runs(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    """Which of them was the last one is not known any more."""
    answer = streamed({**OPENAI, "finish_reason": "length"})
    mixed = answer.model_copy(update={"invalid_tool_calls": [{**BAD, "id": "c9"}]})
    graph = build(FakeGateway(FREE), effects.tools(), mixed, saver=memory)

    end = await runner.say(graph, "look")

    assert effects.looked == ["whole"]
    assert "token limit" in by_call(end)["c1"].text
    assert "not a JSON object" in by_call(end)["c9"].text


async def test_an_unreadable_call_with_the_id_of_another_one_stops_both(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    good = calling(("look_up", {"query": "whole"}, "c1"))
    graph = build(
        FakeGateway(FREE), effects.tools(), unreadable(BAD, good=good), saver=memory
    )

    end = await runner.say(graph, "look")

    assert effects.looked == []
    assert "same id" in by_call(end)["c1"].text


async def test_an_unreadable_call_of_no_tool_ends_the_run_as_ever(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    """It may be a structured response, which LangChain reads by itself."""
    answer = unreadable(InvalidToolCall({**BAD, "name": "Report"}))
    graph = build(FakeGateway(FREE), effects.tools(), answer, saver=memory)

    end = await runner.say(graph, "look")

    assert isinstance(end["messages"][0], HumanMessage)
    assert len(end["messages"]) == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "half \ud83d"])
async def test_what_no_provider_takes_back_does_not_stay_in_the_history(
    runner: Runner, memory: InMemorySaver, effects: Effects, value: Any
) -> None:
    """Else each later request of the thread would fail in the provider's client."""
    call = calling(("look_up", {"query": value}, "c1"))
    graph = build(FakeGateway(FREE), effects.tools(), call, saver=memory)

    end = await runner.say(graph, "look")

    assert effects.looked == []
    assert "cannot be accepted" in by_call(end)["c1"].text
    for provider, payload in providers.payloads(end["messages"]).items():
        assert providers.problems(provider, payload) == []
        json.dumps(payload, ensure_ascii=False, allow_nan=False, default=str).encode()


@pytest.mark.parametrize("call_id", [None, ""])
async def test_a_call_without_an_id_gets_one(
    runner: Runner, memory: InMemorySaver, effects: Effects, call_id: str | None
) -> None:
    """Nothing could answer it, and each later request of the thread would fail."""
    nameless: list[Any] = [
        {"name": "look_up", "args": {"query": query}, "id": call_id}
        for query in ("bread", "milk")
    ]
    bad = InvalidToolCall({**BAD, "id": call_id})
    answer = AIMessage("", tool_calls=nameless, invalid_tool_calls=[bad])
    graph = build(FakeGateway(FREE), effects.tools(), answer, saver=memory)

    end = await runner.say(graph, "look")

    assert sorted(effects.looked) == ["bread", "milk"]
    assert "not a JSON object" in results(end)[-1].text
    for provider, payload in providers.payloads(end["messages"]).items():
        assert providers.problems(provider, payload) == []


@pytest.mark.parametrize("call_id", [None, ""])
async def test_a_call_whose_id_was_taken_away_does_not_run_and_is_told_why(
    runner: Runner, memory: InMemorySaver, effects: Effects, call_id: str | None
) -> None:
    class Nameless(AgentMiddleware[Any, Any, Any]):
        def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            message = state["messages"][-1]
            calls = [{**one, "id": call_id} for one in message.tool_calls]
            return {"messages": [message.model_copy(update={"tool_calls": calls})]}

    gateway = FakeGateway(FREE)
    call = calling(("look_up", {"query": "bread"}, "c1"))
    graph = build(gateway, effects.tools(), call, saver=memory, before=[Nameless()])

    end = await runner.say(graph, "look")

    assert effects.looked == []
    assert [one.text for one in results(end)] == [NO_ID]
