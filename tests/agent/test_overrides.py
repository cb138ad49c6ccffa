"""A run can ask for more people around its tools, and for fewer only where it may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig

from keyturn.agent import ApprovalMiddleware
from keyturn.agent.hints import CORRUPT_OVERRIDES, hint, merge_hints
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.protocol.records import Evidence, Tier, Verb
from keyturn.gateway.protocol.wire import CallHint
from tests.agent.agent_runner import (
    CONFIG,
    Effects,
    Runner,
    agent_with,
    delegating,
    item_of,
    pay,
)
from tests.agent.fake_gateway import FakeGateway
from tests.agent.test_hints import HINTS

ASK = [("user", "pay")]


def overriding(overrides: object, thread: str = "thread-1") -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "keyturn": overrides}}


def for_pay(**override: Any) -> dict[str, Any]:
    return {"tools": {"pay": override}}


SOURCE = Evidence(title="The invoice", text="5 euros")
DESCRIBED: dict[str, Any] = {
    "description": "A payment",
    "args_schema": {"type": "object", "properties": {"amount": {}}},
}


@dataclass
class Setting:
    """A context of an application, with our member among the others."""

    customer: str
    keyturn: dict[str, Any]


async def test_a_run_may_hold_an_auto_tool(runner: Runner, saver: Any) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    agent = agent_with(ApprovalMiddleware(gateway=gateway), runner, pay(), saver=saver)

    await runner.run(agent, {"messages": ASK}, overriding(for_pay(hold=True)))
    held = len(gateway.pending())
    gateway.approve(gateway.only().id)
    await runner.resume(agent, gateway)

    assert held == 1
    assert runner.paid == [(10, "ada")]


async def test_a_run_names_its_task_for_all_tools(runner: Runner, saver: Any) -> None:
    gateway = FakeGateway()
    replies = (pay(1, "ada", "c1"), pay(2, "bob", "c2"))
    agent = agent_with(
        ApprovalMiddleware(gateway=gateway), runner, *replies, saver=saver
    )
    await runner.run(agent, {"messages": ASK}, overriding({"task": "nightly"}))
    gateway.approve(item_of(gateway, "c1").id)

    await runner.resume(agent, gateway)

    calls = [turn.calls[0] for turn, _ in gateway.turns.values()]
    assert [call.hint and call.hint.task for call in calls] == ["nightly", "nightly"]


def test_a_task_stands_beside_what_is_wished_for_a_tool() -> None:
    rows = [{"task": "week", "tools": {"pay": {"hold": True}}}, {"task": "night"}]

    assert hint("pay", rows) == CallHint(hold=True, task="night")
    assert hint("other", rows) == CallHint(task="night")


def test_a_task_that_is_no_short_text_holds_every_call() -> None:
    for task in (7, "x" * 201):
        assert hint("pay", [{"task": task}]) == CORRUPT_OVERRIDES


@pytest.mark.parametrize(
    ("tier", "overridable", "runs"),
    [
        (Tier.APPROVE, frozenset({"pay"}), True),
        (Tier.APPROVE, frozenset[str](), False),
        (Tier.ESCALATE, frozenset({"pay"}), False),
        (Tier.DENY, frozenset({"pay"}), False),
    ],
)
async def test_a_run_loosens_only_what_policy_marks_overridable(
    runner: Runner,
    tier: Tier,
    overridable: frozenset[str],
    runs: bool,  # noqa: FBT001 - a column of the table
) -> None:
    gateway = FakeGateway({"pay": tier}, overridable=overridable)
    agent = agent_with(ApprovalMiddleware(gateway=gateway), runner, pay())

    await runner.run(agent, {"messages": ASK}, overriding(for_pay(hold=False)))

    assert (runner.paid != []) is runs


@pytest.mark.parametrize(
    "context",
    [{"keyturn": for_pay(hold=True)}, Setting("C-1", for_pay(hold=True))],
    ids=["mapping", "object"],
)
async def test_the_context_may_have_wishes(effects: Effects, context: object) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    agent = agent_with(
        ApprovalMiddleware(gateway=gateway),
        effects,
        pay(),
        context_schema=type(context),
    )

    await agent.ainvoke({"messages": ASK}, CONFIG, context=context)

    assert len(gateway.pending()) == 1
    assert effects.paid == []


async def test_a_run_can_describe_a_call_and_give_its_schema(effects: Effects) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    agent = agent_with(
        ApprovalMiddleware(gateway=gateway), effects, pay(), context_schema=dict
    )
    sources = [SOURCE.model_dump()]
    allow = ["approve", "edit"]
    wish = for_pay(hold=True, allow=allow, evidence=sources, **DESCRIBED)

    await agent.ainvoke({"messages": ASK}, CONFIG, context={"keyturn": wish})

    item = gateway.only()
    ((turn, _),) = gateway.turns.values()
    assert effects.paid == []
    assert [one.hint.evidence for one in turn.calls if one.hint] == [(SOURCE,)]
    assert set(item.allow) == {Verb.APPROVE, Verb.EDIT, Verb.REJECT}
    assert item.agent_description == "A payment"
    assert item.args_schema == DESCRIBED["args_schema"]


@pytest.mark.parametrize("name", ["interrupt_on", "interruptOn"])
async def test_langchains_option_is_refused(runner: Runner, name: str) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    agent = agent_with(ApprovalMiddleware(gateway=gateway), runner, pay())
    config: Any = {"configurable": {"thread_id": "t", name: {"pay": True}}}

    with pytest.raises(ValueError, match=f"A run takes no `{name}`"):
        await runner.run(agent, {"messages": ASK}, config)

    assert runner.paid == []


async def test_a_wish_ends_with_the_next_input(runner: Runner, saver: Any) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    replies = (pay(1, "ada", "c1"), AIMessage("ok"), pay(2, "bob", "c2"))
    agent = agent_with(
        ApprovalMiddleware(gateway=gateway), runner, *replies, saver=saver
    )
    await runner.run(agent, {"messages": ASK}, overriding(for_pay(hold=True)))
    gateway.approve(gateway.only().id)
    await runner.resume(agent, gateway)

    await runner.say(agent, "again")

    assert runner.paid == [(1, "ada"), (2, "bob")]


@pytest.mark.parametrize(
    "overrides",
    [
        "hold",
        {"tool": {}},
        {"tools": {"pay": {"hold": "yes"}}},
        {"tools": {"pay": {"hold": 0}}},
        {"tools": {"pay": {"holds": True}}},
        {"tools": {"other": {"allow": []}}},
        {"tools": {"other": {"allow": ["permit"]}}},
        {"tools": {"other": {"tier": "auto"}}},
    ],
    ids=str,
)
async def test_an_unreadable_wish_holds_all(runner: Runner, overrides: object) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    agent = agent_with(ApprovalMiddleware(gateway=gateway), runner, pay())

    await runner.run(agent, {"messages": ASK}, overriding(overrides))

    assert runner.paid == []
    assert "are corrupt" in gateway.only().summary


async def test_wishes_of_all_sources_are_joined(effects: Effects) -> None:
    gateway = FakeGateway(overridable=frozenset({"pay"}))
    interrupt_on: dict[str, Any] = {
        "pay": {"allowed_decisions": ["approve", "edit", "reject"]}
    }
    agent = agent_with(
        ApprovalMiddleware(gateway=gateway, interrupt_on=interrupt_on),
        effects,
        pay(),
        context_schema=dict,
    )
    config = overriding(for_pay(hold=False, allow=["approve", "reject", "respond"]))

    await agent.ainvoke(
        {"messages": ASK}, config, context={"keyturn": for_pay(hold=False)}
    )

    assert gateway.only().allow == (Verb.APPROVE, Verb.REJECT)
    assert effects.paid == []


async def test_an_inner_agent_inherits_the_wish(runner: Runner, saver: Any) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    inner: Any = create_agent(
        scripted([pay(2, "bob", "c2")]),
        runner.tools(),
        middleware=[ApprovalMiddleware("payer", gateway=gateway)],
    )

    delegate = delegating(runner, {"x": inner})
    outer: Any = create_agent(
        scripted([pay(1, "ada", "c1"), calling(("delegate", {"job": "x"}, "d"))]),
        [*runner.tools(), delegate],
        middleware=[ApprovalMiddleware("boss", gateway=gateway)],
        checkpointer=saver,
    )
    await runner.run(outer, {"messages": ASK}, overriding(for_pay(hold=True)))
    gateway.approve(item_of(gateway, "c1").id)

    await runner.resume(outer, gateway)

    assert runner.paid == [(1, "ada")]
    assert item_of(gateway, "c2").ctx.agent == "payer"


@given(HINTS, HINTS)
def test_a_joined_wish_holds_and_narrows_as_much_as_each(
    first: CallHint | None, second: CallHint | None
) -> None:
    both = merge_hints(first, second)

    for one in (first, second):
        if one is None:
            continue
        assert both is not None
        assert both.hold is True or one.hold is not True
        assert one.allow is None or {*(both.allow or ())} <= {*one.allow}
        assert one.allow is None or both.allow is not None
    holds = {one.hold for one in (first, second) if one is not None}
    assert both is None or both.hold in holds
