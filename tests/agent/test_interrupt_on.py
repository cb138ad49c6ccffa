"""LangChain's ``interrupt_on`` works unchanged, and can only add to policy."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware as Stock
from langchain.agents.middleware import InterruptOnConfig
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import ApprovalMiddleware, HumanInTheLoopMiddleware
from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import Tier
from tests.agent.agent_runner import (
    CONFIG,
    Effects,
    Runner,
    agent_with,
    item_of,
    pay,
)
from tests.agent.fake_gateway import FakeGateway

OPEN = frozenset({"pay", "look_up"})
TURN = calling(
    ("pay", {"amount": 10, "to": "ada"}, "c1"),
    ("look_up", {"query": "x"}, "c2"),
    ("pay", {"amount": 90, "to": "bob"}, "c3"),
)
ONLY_TWO: InterruptOnConfig = {"allowed_decisions": ["approve", "reject"]}


def _is_large(request: ToolCallRequest) -> bool:
    return float(request.tool_call["args"]["amount"]) > 50


def _sees_all(request: ToolCallRequest) -> bool:
    runtime = cast("Any", request).runtime
    assert runtime.tool_call_id == request.tool_call["id"]
    assert request.state["messages"][-1].tool_calls
    assert runtime.config["configurable"]["thread_id"] == "thread-1"
    return False


TABLE: dict[str, dict[str, bool | InterruptOnConfig]] = {
    "nothing": {},
    "none of one": {"pay": False},
    "both": {"pay": True, "look_up": True},
    "a tool that is not there": {"drop": True},
    "two decisions": {"pay": ONLY_TWO},
    "one of two": {"pay": False, "look_up": ONLY_TWO},
    "when": {"pay": {**ONLY_TWO, "when": _is_large}},
    "when never": {"pay": {**ONLY_TWO, "when": lambda _: False}},
    "when sees": {"pay": {**ONLY_TWO, "when": _sees_all}},
}


@pytest.mark.parametrize("interrupt_on", TABLE.values(), ids=TABLE.keys())
async def test_the_same_calls_pause_as_under_langchains_own_middleware(
    runner: Runner, interrupt_on: dict[str, bool | InterruptOnConfig]
) -> None:
    theirs_did, ours_did = Effects(), Effects()
    stock = Stock(interrupt_on=interrupt_on, interrupt_mode="per_call")
    gateway = FakeGateway(overridable=OPEN)
    drop_in = HumanInTheLoopMiddleware(interrupt_on=interrupt_on, gateway=gateway)
    theirs = agent_with(stock, theirs_did, TURN)
    ours = agent_with(drop_in, ours_did, TURN)

    await runner.say(theirs, "pay")
    await runner.say(ours, "pay")

    their_pauses = (await runner.state(theirs)).interrupts
    our_pauses = (await runner.state(ours)).interrupts
    assert {p.value["tool_call_id"] for p in our_pauses} == {
        p.value["tool_call_id"] for p in their_pauses
    }
    assert sorted(ours_did.paid) == sorted(theirs_did.paid)
    assert ours_did.looked == theirs_did.looked


@pytest.mark.parametrize(
    ("tier", "pauses"),
    [
        (Tier.AUTO, {"c1", "c3"}),
        (Tier.NOTIFY, {"c1", "c3"}),
        (Tier.APPROVE, {"c1", "c2", "c3"}),
        (Tier.ESCALATE, {"c1", "c2", "c3"}),
        (Tier.DENY, set[str]()),
    ],
)
async def test_unlisted_tools_run_only_as_far_as_policy_says(
    runner: Runner, tier: Tier, pauses: set[str]
) -> None:
    gateway = FakeGateway(default=tier)
    agent = agent_with(
        ApprovalMiddleware(gateway=gateway, interrupt_on={"pay": True}), runner, TURN
    )

    await runner.say(agent, "pay")

    assert {i.ctx.tool_call_id for i in gateway.pending()} == pauses
    assert runner.looked == (["x"] if tier.is_auto_approved else [])
    assert runner.paid == []


def _spell_out(call: Any, state: Any, runtime: Any) -> str:
    said = state["messages"][0].text
    return f"{call['name']} {call['args']['to']} because of {said}, {runtime.context}"


def _raises(*_: Any) -> Any:
    raise LookupError("no words")


@pytest.mark.parametrize(
    ("config", "prefix", "shown"),
    [
        ({"description": "Mind the amount"}, "Prefix", "Mind the amount"),
        ({"description": _spell_out}, "Prefix", "pay ada because of please, None"),
        ({"description": "odd \ud800"}, "Prefix", "odd ?"),
        ({"description": _raises}, "Prefix", ""),
        ({}, "Pending approval", "Pending approval"),
        ({}, "Tool execution requires approval", ""),
    ],
)
async def test_a_description_reaches_the_reviewer_as_the_agents_word(
    runner: Runner,
    config: dict[str, Any],
    prefix: str,
    shown: str,
) -> None:
    gateway = FakeGateway()
    whole: Any = {"pay": {**ONLY_TWO, **config}}
    agent = agent_with(
        HumanInTheLoopMiddleware(
            interrupt_on=whole, description_prefix=prefix, gateway=gateway
        ),
        runner,
        pay(),
    )

    await runner.say(agent, "please")

    expected = f"The agent says: {shown}" if shown else ""
    assert gateway.only().summary == expected


async def test_an_edit_is_checked_by_the_args_schema(runner: Runner) -> None:
    gateway = FakeGateway()
    schema: dict[str, Any] = {"type": "object", "properties": {"amount": {"const": 1}}}
    interrupt_on: dict[str, bool | InterruptOnConfig] = {
        "pay": {**ONLY_TWO, "args_schema": schema}
    }
    agent = agent_with(
        ApprovalMiddleware(gateway=gateway, interrupt_on=interrupt_on), runner, TURN
    )

    await runner.say(agent, "pay")

    (turn, _) = next(iter(gateway.turns.values()))
    assert turn.schemas["pay"] == schema
    assert "query" in json.dumps(turn.schemas["look_up"])


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"allowed_decisions": []},
        {"allowed_decisions": ["approve", "accept"]},
        {"allowed_decisions": "approve"},
        {"allowed_decisions": ["approve"], "args_schema": "int"},
        {"allowed_decisions": ["approve"], "when": 5},
        {"allowedDecisions": ["approve"]},
        None,
    ],
)
def test_a_config_that_nobody_can_use_is_refused_at_once(config: Any) -> None:
    with pytest.raises(ValueError, match="Invalid `interrupt_on` config for tool 'p'"):
        ApprovalMiddleware("support", interrupt_on={"p": config})


def test_the_other_arguments_of_langchain_are_taken_too() -> None:
    options: Any = {"interrupt_mode": "per_call", "edit_notice": None}
    Stock({"pay": True}, **options)
    HumanInTheLoopMiddleware({"pay": True}, **options)


AFTER_MODEL = "model"


def _flipping(first: bool) -> Iterator[bool]:  # noqa: FBT001 - the word itself
    return itertools.chain([first], itertools.repeat(not first))


async def test_a_call_let_through_stays_so(runner: Runner, saver: Any) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    seen: list[str] = []

    def when(request: ToolCallRequest) -> bool:
        seen.append(str(request.tool_call["id"]))
        return _is_large(request)

    interrupt_on: dict[str, bool | InterruptOnConfig] = {
        "pay": {**ONLY_TWO, "when": when}
    }
    middleware = HumanInTheLoopMiddleware(interrupt_on=interrupt_on, gateway=gateway)
    agent = agent_with(middleware, runner, TURN, saver=saver)
    await runner.say(agent, "pay")
    before = list(runner.paid)
    gateway.approve(item_of(gateway, "c3").id)

    await runner.resume(agent, gateway)

    assert before == [(10, "ada")]
    assert runner.paid == [(10, "ada"), (90, "bob")]
    assert seen == ["c1", "c3"]


def _says_nothing(_: ToolCallRequest) -> None:
    return None


def _says_zero(_: ToolCallRequest) -> int:
    return 0


async def _not_awaited(_: ToolCallRequest) -> bool:
    return False


def _changes_the_call(request: ToolCallRequest) -> bool:
    request.tool_call["args"]["amount"] = 0
    return True


@pytest.mark.parametrize(
    "when",
    [_says_nothing, _says_zero, _raises, _not_awaited],
    ids=["none", "zero", "raises", "async"],
)
async def test_a_predicate_without_a_clear_no_holds_the_call(
    runner: Runner, when: Callable[..., Any]
) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    interrupt_on: Any = {"pay": {**ONLY_TWO, "when": when}}
    middleware = HumanInTheLoopMiddleware(interrupt_on=interrupt_on, gateway=gateway)
    agent = agent_with(middleware, runner, pay())

    await runner.say(agent, "pay")

    assert len(gateway.pending()) == 1
    assert runner.paid == []


async def test_a_predicate_cannot_change_the_call_it_looks_at(runner: Runner) -> None:
    gateway = FakeGateway()
    interrupt_on: Any = {"pay": {**ONLY_TWO, "when": _changes_the_call}}
    middleware = HumanInTheLoopMiddleware(interrupt_on=interrupt_on, gateway=gateway)
    agent = agent_with(middleware, runner, pay())
    await runner.say(agent, "pay")
    gateway.approve(gateway.only().id)

    await runner.resume(agent, gateway)

    assert runner.paid == [(10, "ada")]


async def test_a_forgotten_turn_is_evaluated_by_its_hints(runner: Runner) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    saver = InMemorySaver()
    words = _flipping(first=False)
    config: InterruptOnConfig = {**ONLY_TWO, "when": lambda _: next(words)}
    interrupt_on: dict[str, bool | InterruptOnConfig] = {"pay": config, "look_up": True}

    def agent() -> Any:
        middleware = HumanInTheLoopMiddleware(interrupt_on, gateway=gateway)
        options = {"saver": saver, "interrupt_before": ["tools"]}
        return agent_with(middleware, runner, TURN, **options)

    await runner.say(agent(), "pay")
    first = next(iter(gateway.turns.values()))[0]
    gateway.turns.clear()
    await runner.run(agent(), None)

    again = next(iter(gateway.turns.values()))[0]
    for turn in (first, again):
        holds = [call.hint and call.hint.hold for call in turn.calls]
        assert holds == [False, True, True]


@pytest.mark.parametrize(
    "row", [{"hold": "no"}, {"hold": 0}, "no", {"hold": False, "tier": "auto"}, None]
)
async def test_an_unreadable_hint_runs_no_call(runner: Runner, row: object) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    saver = InMemorySaver()

    def agent(*replies: AIMessage) -> Any:
        middleware = HumanInTheLoopMiddleware({}, gateway=gateway)
        options = {"saver": saver, "interrupt_before": ["tools"]}
        return agent_with(middleware, runner, *replies, **options)

    await runner.say(agent(pay()), "pay")
    note = (await runner.state(agent())).values["keyturn_turn"]
    gateway.turns.clear()
    forged = {"keyturn_turn": {**note, "hints": {"c1": row}}}
    agent().update_state(CONFIG, forged, as_node=AFTER_MODEL)

    await runner.run(agent(), None)

    assert runner.paid == []
    assert gateway.turns == {}
