"""A predicate is called once, and only its plain False lets a call run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents.middleware import InterruptOnConfig
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import HumanInTheLoopMiddleware
from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import Tier
from tests.agent.agent_runner import (
    CONFIG,
    Effects,
    Runner,
    agent_with,
    by_call,
    item_of,
    pay,
)
from tests.agent.fake_gateway import FakeGateway

TURN = calling(
    ("pay", {"amount": 10, "to": "ada"}, "c1"),
    ("look_up", {"query": "x"}, "c2"),
    ("pay", {"amount": 90, "to": "bob"}, "c3"),
)
AFTER_MODEL = "model"
ONLY_TWO: InterruptOnConfig = {"allowed_decisions": ["approve", "reject"]}


def is_large(request: ToolCallRequest) -> bool:
    return float(request.tool_call["args"]["amount"]) > 50


def _flipping(first: bool) -> Iterator[bool]:  # noqa: FBT001 - the word itself
    return itertools.chain([first], itertools.repeat(not first))


async def test_a_rejected_call_never_runs_when_its_predicate_changes_its_mind(
    runner: Runner, saver: Any, effects: Effects
) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    words = _flipping(first=True)
    interrupt_on: dict[str, bool | InterruptOnConfig] = {
        "pay": {**ONLY_TWO, "when": lambda _: next(words)}
    }
    middleware = HumanInTheLoopMiddleware(interrupt_on=interrupt_on, gateway=gateway)
    agent = agent_with(middleware, effects, pay(), saver=saver)
    await runner.say(agent, "pay")
    gateway.reject(gateway.only().id, "no")

    end = await runner.resume(agent, gateway)

    assert effects.paid == []
    assert by_call(end)["c1"].status == "error"
    assert next(words) is False, "it was asked exactly once"


async def test_a_call_let_through_stays_so_when_its_sibling_is_resumed(
    runner: Runner, saver: Any, effects: Effects
) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    seen: list[str] = []

    def when(request: ToolCallRequest) -> bool:
        seen.append(str(request.tool_call["id"]))
        return is_large(request)

    interrupt_on: dict[str, bool | InterruptOnConfig] = {
        "pay": {**ONLY_TWO, "when": when}
    }
    middleware = HumanInTheLoopMiddleware(interrupt_on=interrupt_on, gateway=gateway)
    agent = agent_with(middleware, effects, TURN, saver=saver)
    await runner.say(agent, "pay")
    before = list(effects.paid)
    gateway.approve(item_of(gateway, "c3").id)

    await runner.resume(agent, gateway)

    assert before == [(10, "ada")]
    assert effects.paid == [(10, "ada"), (90, "bob")]
    assert seen == ["c1", "c3"]


def _says_nothing(_: ToolCallRequest) -> None:
    return None


def _says_zero(_: ToolCallRequest) -> int:
    return 0


def _says_text(_: ToolCallRequest) -> str:
    return ""


def _raises(_: ToolCallRequest) -> bool:
    raise LookupError("no idea")


async def _not_awaited(_: ToolCallRequest) -> bool:
    return False


def _changes_the_call(request: ToolCallRequest) -> bool:
    request.tool_call["args"]["amount"] = 0
    return True


@pytest.mark.parametrize(
    "when",
    [_says_nothing, _says_zero, _says_text, _raises, _not_awaited],
    ids=["none", "zero", "text", "raises", "async"],
)
async def test_a_predicate_without_a_clear_no_holds_the_call(
    runner: Runner, effects: Effects, when: Callable[..., Any]
) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    interrupt_on: Any = {"pay": {**ONLY_TWO, "when": when}}
    middleware = HumanInTheLoopMiddleware(interrupt_on=interrupt_on, gateway=gateway)
    agent = agent_with(middleware, effects, pay())

    await runner.say(agent, "pay")

    assert len(gateway.pending()) == 1
    assert effects.paid == []


async def test_a_predicate_cannot_change_the_call_it_looks_at(
    runner: Runner, effects: Effects
) -> None:
    gateway = FakeGateway()
    interrupt_on: Any = {"pay": {**ONLY_TWO, "when": _changes_the_call}}
    middleware = HumanInTheLoopMiddleware(interrupt_on=interrupt_on, gateway=gateway)
    agent = agent_with(middleware, effects, pay())
    await runner.say(agent, "pay")
    gateway.approve(gateway.only().id)

    await runner.resume(agent, gateway)

    assert effects.paid == [(10, "ada")]


async def test_a_turn_the_gateway_forgot_is_evaluated_again_by_the_hints_it_had(
    runner: Runner, effects: Effects
) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    saver = InMemorySaver()
    words = _flipping(first=False)
    config: InterruptOnConfig = {**ONLY_TWO, "when": lambda _: next(words)}
    interrupt_on: dict[str, bool | InterruptOnConfig] = {"pay": config, "look_up": True}

    def agent() -> Any:
        middleware = HumanInTheLoopMiddleware(interrupt_on, gateway=gateway)
        options = {"saver": saver, "interrupt_before": ["tools"]}
        return agent_with(middleware, effects, TURN, **options)

    await runner.say(agent(), "pay")
    first = next(iter(gateway.turns.values()))[0]
    gateway.turns.clear()
    await runner.run(agent(), None)

    again = next(iter(gateway.turns.values()))[0]
    assert [call.hint and call.hint.hold for call in first.calls] == [
        False,
        True,
        True,
    ]
    assert [call.hint and call.hint.hold for call in again.calls] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    "row", [{"hold": "no"}, {"hold": 0}, "no", {"hold": False, "tier": "auto"}, None]
)
async def test_a_hint_in_state_that_cannot_be_read_holds_its_call(
    runner: Runner, effects: Effects, row: object
) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    saver = InMemorySaver()

    def agent(*replies: AIMessage) -> Any:
        middleware = HumanInTheLoopMiddleware({}, gateway=gateway)
        options = {"saver": saver, "interrupt_before": ["tools"]}
        return agent_with(middleware, effects, *replies, **options)

    await runner.say(agent(pay()), "pay")
    note = (await runner.state(agent())).values["keyturn_turn"]
    gateway.turns.clear()
    forged = {"keyturn_turn": {**note, "hints": {"c1": row}}}
    agent().update_state(CONFIG, forged, as_node=AFTER_MODEL)

    await runner.run(agent(), None)

    assert effects.paid == []
    assert len(gateway.pending()) == 1


async def test_state_cannot_take_back_a_wish_that_the_gateway_has_heard(
    runner: Runner, effects: Effects
) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    middleware = HumanInTheLoopMiddleware({"pay": True}, gateway=gateway)
    saver = InMemorySaver()
    agent = agent_with(middleware, effects, pay(), saver=saver)
    await runner.say(agent, "pay")
    note = (await runner.state(agent)).values["keyturn_turn"]
    verdict = {**note["verdicts"]["c1"], "kind": "run", "tier": "auto"}
    forged = {
        **note,
        "verdicts": {"c1": verdict},
        "hints": {"c1": {"hold": False}},
    }
    fresh = agent_with(
        HumanInTheLoopMiddleware({"pay": True}, gateway=gateway),
        effects,
        pay(),
        saver=saver,
    )
    fresh.update_state(CONFIG, {"keyturn_turn": forged}, as_node=AFTER_MODEL)

    end = await runner.run(fresh, None)

    assert effects.paid == []
    assert "does not run" in by_call(end)["c1"].text
