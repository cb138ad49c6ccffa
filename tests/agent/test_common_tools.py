"""What tools and middleware of LangChain's users do works behind the gate as before."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents.middleware import ModelFallbackMiddleware, ToolRetryMiddleware
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent.scripted_model import ScriptedModel, scripted
from keyturn.gateway.protocol.records import Tier
from tests.agent.agent_runner import Effects, Runner, build, by_call, pay
from tests.agent.fake_gateway import FakeGateway


async def test_calls_of_a_model_that_stands_in_for_another_are_asked_about_once(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    def down(_messages: object) -> Any:
        raise ConnectionError("the first model is down")

    gateway = FakeGateway({})
    graph = build(
        gateway,
        effects.tools(),
        model=ScriptedModel(reply=down),
        before=[ModelFallbackMiddleware(scripted([pay()]))],
        saver=memory,
    )
    await runner.say(graph, "pay")
    gateway.approve(gateway.only().id)

    await runner.resume(graph, gateway)

    assert effects.paid == [(10, "ada")]


@pytest.mark.parametrize(("tier", "times"), [(Tier.AUTO, 3), (Tier.APPROVE, 1)])
async def test_retrying_middleware_repeats_no_call_that_people_approved(
    runner: Runner, memory: InMemorySaver, effects: Effects, tier: Tier, times: int
) -> None:
    def fail() -> None:
        if len(effects.paid) < 3:
            raise ConnectionError("try again")

    effects.inside = fail
    gateway = FakeGateway({"pay": tier})
    retrying = ToolRetryMiddleware(max_retries=5, initial_delay=0, jitter=False)
    graph = build(gateway, effects.tools(), pay(), saver=memory, before=[retrying])
    end = await runner.say(graph, "pay")
    if gateway.items:
        gateway.approve(gateway.only().id)
        end = await runner.resume(graph, gateway)

    assert len(effects.paid) == times
    assert by_call(end)["c1"].status == ("success" if times > 1 else "error")


@pytest.mark.parametrize("on_failure", ["continue", "error"])
async def test_retries_behind_the_gate_are_warned_of_and_do_nothing(
    runner: Runner, memory: InMemorySaver, effects: Effects, on_failure: Any
) -> None:
    def fail() -> None:
        raise ConnectionError("try again")

    effects.inside = fail
    gateway = FakeGateway({"pay": Tier.AUTO})
    retrying = ToolRetryMiddleware(initial_delay=0, jitter=False, on_failure=on_failure)
    graph = build(gateway, effects.tools(), pay(), saver=memory, after=[retrying])

    with pytest.warns(UserWarning, match="ToolRetryMiddleware is listed after"):
        end = await runner.say(graph, "pay")

    assert len(effects.paid) == 1
    assert by_call(end)["c1"].status == "error"
