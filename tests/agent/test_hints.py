"""Hints of agents and wishes of runs raise, narrow, and loosen only where they may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig

from keyturn.agent import ApprovalMiddleware
from keyturn.agent.hints import CORRUPT_OVERRIDES, hint, merge_hints
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.policy.evaluate import Evaluation, evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Defaults, Policy, RaiseRule, ToolRule
from keyturn.gateway.protocol.records import Evidence, Tier, Verb, join
from keyturn.gateway.protocol.wire import CallHint
from keyturn.gateway.service.submit.turn_evaluation import apply_hint
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

TIERED = load_policy(
    """\
version: 1
defaults: {expires_in: 1h, channel: "#cards", needs: U0ANA}
tiers:
  notify: {channel: "#notices"}
tools:
  look_up: {tier: notify}
  pay:
    tier: approve
    overridable: true
    raise: [{to: escalate, when: "args.amount > 50", because: large}]
  trust:
    tier: auto
    overridable: true
    raise: [{to: approve, when: "args.amount > 50", because: large}]
""",
    "policy.yml",
)
HINTS = st.none() | st.builds(
    CallHint,
    hold=st.none() | st.booleans(),
    allow=st.none() | st.lists(st.sampled_from(Verb)).map(tuple),
    description=st.text(),
)


def for_pay(rule: ToolRule) -> Policy:
    return Policy(version=1, tools={"pay": rule})


POLICIES = st.builds(
    for_pay,
    st.builds(
        ToolRule,
        tier=st.sampled_from(Tier),
        allow=st.lists(st.sampled_from(Verb), min_size=1, unique=True).map(tuple),
        description=st.sampled_from([None, "Refund {args.amount}"]),
        redact=st.sampled_from([(), ("args.card",)]),
        overridable=st.none() | st.booleans(),
        **{
            "raise": st.lists(
                st.builds(
                    RaiseRule,
                    to=st.sampled_from([Tier.APPROVE, Tier.ESCALATE, Tier.DENY]),
                    when=st.sampled_from(["args.amount > 5", "args.amount > 50"]),
                    because=st.just("large"),
                ),
                max_size=2,
            ).map(tuple)
        },
    ),
)


def evaluated(
    policy: Policy, hint: CallHint | None, tool: str = "pay", amount: int = 10
) -> Evaluation:
    def evaluate_at(requested_tier: Tier | None) -> Evaluation:
        return evaluate(
            policy,
            agent="support",
            tool=tool,
            args={"amount": amount},
            requested_tier=requested_tier,
        )

    return apply_hint(evaluate_at, hint)


def of_tier(tier: Tier, **more: object) -> Policy:
    rule = ToolRule.model_validate({"tier": tier, **more})
    return Policy(version=1, defaults=Defaults(needs=("U0ANA",)), tools={"pay": rule})


def _verbs(names: str) -> tuple[Verb, ...]:
    return tuple(Verb(name) for name in names.split())


@given(POLICIES, HINTS)
def test_a_hint_lowers_overridables_only(policy: Policy, hint: CallHint | None) -> None:
    plain, hinted = evaluated(policy, None), evaluated(policy, hint)

    assert {*hinted.allow} <= {*plain.allow, Verb.REJECT}
    if not plain.overridable:
        assert hinted.tier.rank >= plain.tier.rank
        assert hinted.tier in {plain.tier, Tier.APPROVE}


@given(POLICIES, HINTS)
def test_a_clear_no_waives_one_reviewer(policy: Policy, hint: CallHint | None) -> None:
    plain, hinted = evaluated(policy, None), evaluated(policy, hint)

    fired = [rule.to for rule in plain.fired]
    is_waived = hinted.tier.rank < plain.tier.rank
    may_be = plain.overridable and plain.tier is Tier.APPROVE and not fired
    assert is_waived == (may_be and hint is not None and hint.hold is False)
    assert hinted.tier is join(hinted.tier, *fired)


@given(POLICIES, HINTS)
def test_a_reviewer_may_always_reject(policy: Policy, hint: CallHint | None) -> None:
    plain, hinted = evaluated(policy, None), evaluated(policy, hint)

    assert hinted.allow
    assert Verb.REJECT in hinted.allow or Verb.REJECT not in plain.allow


@pytest.mark.parametrize("tier", [Tier.AUTO, Tier.NOTIFY])
def test_a_call_that_would_run_is_held_when_the_agent_asks(tier: Tier) -> None:
    hinted = evaluated(of_tier(tier), CallHint(hold=True))

    assert hinted.tier is Tier.APPROVE
    assert hinted.reasons[-1] == "This run of the agent asked for approve."


def test_a_call_that_is_held_gets_the_people_time_and_channel_of_a_card() -> None:
    hinted = evaluated(TIERED, CallHint(hold=True), "look_up")

    assert [role.users for role in hinted.requirement.of] == [("U0ANA",)]
    assert hinted.requirement.approvals == 1
    assert hinted.ttl_ms == 3_600_000
    assert hinted.channel == "#cards"


@pytest.mark.parametrize(
    ("given_verbs", "asked", "left"),
    [
        ("approve edit reject respond", "approve reject", "approve reject"),
        ("approve edit reject respond", "approve", "approve reject"),
        ("approve edit", "approve respond", "approve"),
        ("approve edit", "respond", "reject"),
        ("reject approve", "approve reject", "reject approve"),
        ("approve reject", "", "reject"),
    ],
)
def test_wished_decisions_are_offered(given_verbs: str, asked: str, left: str) -> None:
    policy = of_tier(Tier.APPROVE, allow=_verbs(given_verbs), overridable=True)

    assert evaluated(policy, CallHint(allow=_verbs(asked))).allow == _verbs(left)


def test_a_description_is_one_line_and_kept_as_the_agents() -> None:
    hinted = evaluated(
        of_tier(Tier.APPROVE), CallHint(description=" Drop\n\nthe   table ")
    )

    assert (hinted.description, hinted.agent_description) == ("", "Drop the table")


@pytest.mark.parametrize("more", [{"description": "Refund"}, {"redact": ["args.card"]}])
def test_a_description_replaces_and_reveals_nothing(more: dict[str, object]) -> None:
    policy = of_tier(Tier.APPROVE, **more)

    hinted = evaluated(policy, CallHint(description="harmless: card 4111 1111"))

    assert hinted.description == evaluated(policy, None).description
    assert not hinted.agent_description


ASK = [("user", "pay")]


def overriding(overrides: object, thread: str = "thread-1") -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "keyturn": overrides}}


def wish_for_pay(**override: Any) -> dict[str, Any]:
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

    await runner.run(agent, {"messages": ASK}, overriding(wish_for_pay(hold=True)))
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

    await runner.run(agent, {"messages": ASK}, overriding(wish_for_pay(hold=False)))

    assert (runner.paid != []) is runs


@pytest.mark.parametrize(
    "context",
    [{"keyturn": wish_for_pay(hold=True)}, Setting("C-1", wish_for_pay(hold=True))],
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
    wish = wish_for_pay(hold=True, allow=allow, evidence=sources, **DESCRIBED)

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
    await runner.run(agent, {"messages": ASK}, overriding(wish_for_pay(hold=True)))
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
    config = overriding(
        wish_for_pay(hold=False, allow=["approve", "reject", "respond"])
    )

    await agent.ainvoke(
        {"messages": ASK}, config, context={"keyturn": wish_for_pay(hold=False)}
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
    await runner.run(outer, {"messages": ASK}, overriding(wish_for_pay(hold=True)))
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
