"""LangChain's ``interrupt_on`` works unchanged, and can only add to policy."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware as Stock,
)
from langchain.agents.middleware import InterruptOnConfig
from langchain.agents.middleware.types import ToolCallRequest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import ApprovalMiddleware, HumanInTheLoopMiddleware
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.protocol.records import Tier, Verb
from tests.agent.agent_runner import Effects, Runner, agent_with, pay
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


def _look(tool_call: Any, state: Any, runtime: Any) -> str:
    return "Look"


def _seven(*_: Any) -> Any:
    return 7


TABLE: dict[str, dict[str, bool | InterruptOnConfig]] = {
    "nothing": {},
    "all of one": {"pay": True},
    "none of one": {"pay": False},
    "both": {"pay": True, "look_up": True},
    "a tool that is not there": {"drop": True},
    "two decisions": {"pay": ONLY_TWO},
    "one of two": {"pay": False, "look_up": ONLY_TWO},
    "when": {"pay": {**ONLY_TWO, "when": _is_large}},
    "when never": {"pay": {**ONLY_TWO, "when": lambda _: False}},
    "when always": {"pay": {**ONLY_TWO, "when": lambda _: True}},
    "when sees": {"pay": {**ONLY_TWO, "when": _sees_all}},
    "when of all": {
        "pay": {**ONLY_TWO, "when": _is_large},
        "look_up": {**ONLY_TWO, "when": lambda r: r.tool_call["args"]["query"] == "x"},
    },
    "described": {"pay": {**ONLY_TWO, "description": "Look closely"}},
    "described by code": {"pay": {**ONLY_TWO, "description": _look}},
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
    runner: Runner, effects: Effects, tier: Tier, pauses: set[str]
) -> None:
    gateway = FakeGateway(default=tier)
    agent = agent_with(
        ApprovalMiddleware(gateway=gateway, interrupt_on={"pay": True}), effects, TURN
    )

    await runner.say(agent, "pay")

    assert {i.ctx.tool_call_id for i in gateway.pending()} == pauses
    assert effects.looked == (["x"] if tier.is_auto_approved else [])
    assert effects.paid == []


async def test_allowed_decisions_narrow_what_a_reviewer_may_say(
    runner: Runner, effects: Effects
) -> None:
    gateway = FakeGateway(allow=(Verb.APPROVE, Verb.REJECT, Verb.RESPOND))
    interrupt_on: dict[str, bool | InterruptOnConfig] = {
        "pay": {"allowed_decisions": ["approve", "edit"]}
    }
    agent = agent_with(
        ApprovalMiddleware(gateway=gateway, interrupt_on=interrupt_on), effects, pay()
    )

    await runner.say(agent, "pay")

    assert gateway.only().allow == (Verb.APPROVE, Verb.REJECT)


def _spell_out(call: Any, state: Any, runtime: Any) -> str:
    said = state["messages"][0].text
    return f"{call['name']} {call['args']['to']} because of {said}, {runtime.context}"


def _raises(*_: Any) -> str:
    raise LookupError("no words")


@pytest.mark.parametrize(
    ("config", "prefix", "shown"),
    [
        ({"description": "Mind the amount"}, "Prefix", "Mind the amount"),
        ({"description": _spell_out}, "Prefix", "pay ada because of please, None"),
        ({"description": _seven}, "Prefix", "7"),
        ({"description": "odd \ud800"}, "Prefix", "odd ?"),
        ({"description": _raises}, "Prefix", ""),
        ({"description": ""}, "Prefix", ""),
        ({}, "Pending approval", "Pending approval"),
        ({}, "Tool execution requires approval", ""),
    ],
)
async def test_a_description_reaches_the_reviewer_as_the_agents_word(
    runner: Runner,
    effects: Effects,
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
        effects,
        pay(),
    )

    await runner.say(agent, "please")

    expected = f"The agent says: {shown}" if shown else ""
    assert gateway.only().summary == expected


async def test_an_args_schema_is_what_an_edit_is_checked_against(
    runner: Runner, effects: Effects
) -> None:
    gateway = FakeGateway()
    schema: dict[str, Any] = {"type": "object", "properties": {"amount": {"const": 1}}}
    interrupt_on: dict[str, bool | InterruptOnConfig] = {
        "pay": {**ONLY_TWO, "args_schema": schema}
    }
    agent = agent_with(
        ApprovalMiddleware(gateway=gateway, interrupt_on=interrupt_on), effects, TURN
    )

    await runner.say(agent, "pay")

    (turn, _) = next(iter(gateway.turns.values()))
    assert turn.schemas["pay"] == schema
    assert "query" in json.dumps(turn.schemas["look_up"])


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"allowed_decision": ["approve"]},
        {"allowed_decisions": []},
        {"allowed_decisions": None},
    ],
)
def test_a_config_without_decisions_is_refused_as_langchain_refuses_it(
    config: Any,
) -> None:
    with pytest.raises(ValueError, match="Invalid `interrupt_on` config") as theirs:
        Stock(interrupt_on={"pay": config})
    with pytest.raises(ValueError, match="tool 'pay'") as ours:
        HumanInTheLoopMiddleware(interrupt_on={"pay": config})

    assert str(ours.value).startswith(str(theirs.value).split(" (e.g.")[0])
    assert str(ours.value).endswith(str(theirs.value).split("Got config")[1])


@pytest.mark.parametrize(
    "config",
    [
        {"allowed_decisions": ["permit"]},
        {"allowed_decisions": ["approve", "accept"]},
        {"allowed_decisions": "approve"},
        {"allowed_decisions": 7},
        {"allowed_decisions": [["approve"]]},
        {"allowed_decisions": ["approve"], "args_schema": "int"},
        None,
        "yes",
    ],
)
def test_a_config_that_langchain_would_trip_over_later_is_refused_at_once(
    config: Any,
) -> None:
    with pytest.raises(ValueError, match="Invalid `interrupt_on` config for tool 'p'"):
        ApprovalMiddleware("support", interrupt_on={"p": config})


def test_the_other_arguments_of_langchain_are_taken_too() -> None:
    Stock({"pay": True}, interrupt_mode="per_call", edit_notice=None)

    with pytest.warns(UserWarning, match="edit_notice"):
        HumanInTheLoopMiddleware(
            {"pay": True}, interrupt_mode="per_call", edit_notice=None
        )
    with pytest.warns(UserWarning, match="edit_notice"):
        HumanInTheLoopMiddleware({"pay": True}, edit_notice="unset")
    odd: Any = "each"
    with pytest.raises(ValueError, match="interrupt_mode") as theirs:
        Stock({"pay": True}, interrupt_mode=odd)
    with pytest.raises(ValueError, match="interrupt_mode") as ours:
        HumanInTheLoopMiddleware({"pay": True}, interrupt_mode=odd)
    assert str(ours.value) == str(theirs.value)


async def test_the_system_note_lists_what_the_agent_gates_itself(
    runner: Runner, effects: Effects
) -> None:
    gateway = FakeGateway({"look_up": Tier.APPROVE}, default=Tier.AUTO)
    model = scripted([])
    agent: Any = create_agent(
        model,
        effects.tools(),
        middleware=[HumanInTheLoopMiddleware({"pay": True}, gateway=gateway)],
        checkpointer=InMemorySaver(),
    )

    await runner.say(agent, "hello")

    assert "approval: look_up, pay." in str(model.seen[0][0].content)
