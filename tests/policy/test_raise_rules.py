"""Rules, overrides and facts can only require more, and give their reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.gateway.policy.evaluate import Evaluation, Facts, evaluate, listed_tier
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject

NOW = 1_782_900_000_000  # 2026-07-01 10:00 UTC, a Wednesday
POLICY = load_policy(
    """\
version: 1
defaults: {needs: support, expires_in: 2h}
roles: {support: {usergroups: [S0SUPPORT]}, senior: {users: [U0LEAD]}}
windows:
  refunded: {tools: [refund], by: args.customer, sum: args.amount, within: 24h}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior}]}
tiers:
  notify: {channel: "#notices"}
  approve: {remind_at: 25%, escalate_at: 50%, escalate_to: senior}
  escalate: {needs: with_senior, expires_in: 20m, remind_at: 50%}
tools:
  look_up:
    tier: auto
    raise: [{to: notify, when: args.id > 100, because: a high id}]
  refund:
    tier: approve
    redact: [args.card]
    raise:
      - {to: escalate, when: args.amount > 500, because: refund over 500}
      - {to: escalate, when: windows.refunded > 1000, because: over 1000 a day.}
      - {to: deny, when: recent.rejections_in_row > 5, because: nobody wants this}
      - {to: escalate, when: now < timestamp('2020-01-01T00:00:00Z'), because: early}
      - {to: escalate, when: has(args.card) && args.card == '4111', because: test card}
  wipe: {tier: deny}
  tag: {tier: approve, overridable: true, allow: [approve, reject]}
  typed:
    tier: auto
    args_schema: {type: object, properties: {id: {type: integer}}}
agents:
  night:
    tools:
      refund: {raise: [{to: escalate, when: call.agent == 'night', because: at night}]}
""",
    "p.yml",
)
FACTS = Facts(now_ms=NOW, windows={"refunded": 100_000_000})


def evaluation_of(
    tool: str, facts: Facts | None = FACTS, **args: JsonValue
) -> Evaluation:
    return evaluate(POLICY, agent="a", tool=tool, args=args, facts=facts)


def test_only_a_rule_that_holds_raises_and_says_what_it_saw() -> None:
    calm = evaluation_of("refund", amount=10)
    evaluation = evaluation_of("refund", amount=501, card="4111")

    assert (calm.tier, calm.fired) == (Tier.APPROVE, ())
    assert calm.reasons == ("The policy lists this tool as approve.",)
    assert evaluation.tier is Tier.ESCALATE
    assert evaluation.requirement.approvals == 2
    assert evaluation.reasons[1:] == (
        "Raised to escalate: refund over 500.",
        "Raised to escalate: test card.",
    )
    assert [rule.values for rule in evaluation.fired] == [
        (("args.amount", "501"),),
        (("args.card", "•••••• (hidden by policy)"),),
    ]


def test_a_total_is_read_in_natural_units() -> None:
    over = FACTS.with_(windows={"refunded": 1_000_000_001})
    exact = FACTS.with_(windows={"refunded": 1_000_000_000})

    assert evaluation_of("refund", over, amount=1).tier is Tier.ESCALATE
    assert evaluation_of("refund", over, amount=1).fired[0].values == (
        ("windows.refunded", "1000.000001"),
    )
    assert evaluation_of("refund", exact, amount=1).tier is Tier.APPROVE


def test_a_rule_may_deny_and_the_reason_is_for_the_model() -> None:
    evaluation = evaluation_of("refund", FACTS.with_(rejections_in_row=6), amount=1)

    assert evaluation.tier is Tier.DENY
    assert evaluation.reasons[-1] == "Raised to deny: nobody wants this."


def test_a_rule_may_ask_for_a_notice_only() -> None:
    evaluation = evaluation_of("look_up", id=101)

    assert (evaluation.tier, evaluation.channel) == (Tier.NOTIFY, "#notices")
    assert evaluation_of("look_up", id=1).channel == "#agent-approvals"


def test_rules_of_one_agent_come_on_top_of_those_of_the_tool() -> None:
    evaluation = evaluate(
        POLICY, agent="night", tool="refund", args={"amount": 501}, facts=FACTS
    )

    assert [rule.because for rule in evaluation.fired] == [
        "refund over 500",
        "at night",
    ]


@pytest.mark.parametrize(
    ("facts", "args", "problem"),
    [
        (FACTS, {}, "'refund over 500' could not be checked, because args.amount is "),
        (FACTS, {"amount": float("nan")}, "because the call is not strict JSON"),
        (None, {"amount": 1}, "because windows cannot be known here"),
        (FACTS.with_(windows={}), {"amount": 1}, "the total 'refunded' is not known"),
        (FACTS.with_(now_ms=10**17), {"amount": 1}, "because it failed on these va"),
        (FACTS.with_(problems=("The total 'x' is gone.",)), {"amount": 1}, "'x' is go"),
    ],
)
def test_what_cannot_be_checked_escalates_and_says_so(
    facts: Facts | None, args: JsonObject, problem: str
) -> None:
    evaluation = evaluate(POLICY, agent="a", tool="refund", args=args, facts=facts)

    assert evaluation.tier is Tier.ESCALATE
    assert any(
        reason.startswith("Raised to escalate: ") and problem in reason
        for reason in evaluation.reasons
    )


def test_without_facts_only_the_rules_that_need_them_escalate() -> None:
    assert evaluation_of("look_up", None, id=1).tier is Tier.AUTO
    assert evaluation_of("look_up", None, id=101).tier is Tier.NOTIFY


@pytest.mark.parametrize("args", [{"id": "1"}, {"id": 1, "extra": 2}])
def test_arguments_outside_the_schema_escalate(args: JsonObject) -> None:
    assert evaluation_of("typed", id=1).tier is Tier.AUTO

    evaluation = evaluate(POLICY, agent="a", tool="typed", args=args, facts=FACTS)

    assert evaluation.tier is Tier.ESCALATE
    assert "do not fit the policy's schema" in evaluation.reasons[-1]


def test_time_is_counted_from_the_tier_that_the_call_has() -> None:
    calm, hot = evaluation_of("refund", amount=1), evaluation_of("refund", amount=501)

    assert (calm.ttl_ms, calm.remind_at_ms, calm.escalate_at_ms) == (
        7_200_000,
        1_800_000,
        3_600_000,
    )
    assert (hot.ttl_ms, hot.remind_at_ms, hot.escalate_at_ms) == (1_200_000, 600_000, 0)


def test_those_who_are_called_later_may_vote_from_the_start() -> None:
    evaluation = evaluation_of("refund", amount=1)

    assert evaluation.escalate_to == "senior"
    assert [role.users for role in evaluation.escalate_roles] == [("U0LEAD",)]
    assert [role.name for role in evaluation.requirement.of] == ["support", "senior"]


def requesting(tool: str, requested_tier: Tier) -> Evaluation:
    return evaluate(
        POLICY,
        agent="a",
        tool=tool,
        args={"amount": 1, "id": 1},
        facts=FACTS,
        requested_tier=requested_tier,
    )


def test_a_run_may_ask_for_more_and_for_less_only_where_the_policy_lets_it() -> None:
    loose, firm = requesting("tag", Tier.AUTO), requesting("refund", Tier.AUTO)

    assert (loose.tier, firm.tier) == (Tier.AUTO, Tier.APPROVE)
    assert requesting("look_up", Tier.ESCALATE).tier is Tier.ESCALATE
    assert firm.reasons[1] == (
        "This run of the agent asked for auto; the policy does not let it."
    )


@pytest.mark.parametrize(
    ("tools", "runs"),
    [
        ({}, True),
        ({"other": {"tier": "deny"}}, True),
        ({"t": {}}, False),
        ({"t": {"tier": "approve"}}, False),
        ({"t": {"overridable": False}}, False),
        ({"t": {"overridable": True}}, True),
    ],
)
def test_a_listed_tool_is_no_looser(tools: dict[str, object], *, runs: bool) -> None:
    defaults = {"overridable": True}
    by_tool = {"version": 1, "defaults": defaults, "tools": tools}
    by_agent = {"version": 1, "defaults": defaults, "agents": {"a": {"tools": tools}}}
    closed = {"version": 1, "agents": {"b": {"tools": tools}}}
    by_another = closed | {"defaults": defaults}

    asked = [
        evaluate(
            Policy.model_validate(policy),
            agent="a",
            tool="t",
            args={},
            requested_tier=Tier.AUTO,
        )
        for policy in (by_tool, by_agent, closed, by_another)
    ]

    wanted = [runs, runs, False, "t" not in tools]
    assert [evaluation.overridable for evaluation in asked] == wanted
    assert [evaluation.tier is Tier.AUTO for evaluation in asked] == wanted


TIERS = st.sampled_from(Tier)
WHEN = st.sampled_from(
    [
        "true",
        "false",
        "args.x > 1",
        "args.x == 'a'",
        "1 / 0 == 1",
        "windows.w > 5",
        "recent.failures_1h > 1",
        "call.tool == 't'",
        "requester == 'U1'",
        "off_hours(now, 'Europe/London', '08:00-18:00')",
        "has(args.x) && args.x",
    ]
)
ANY_FACTS = st.none() | st.builds(
    Facts,
    now_ms=st.integers(0, 4_000_000_000_000),
    windows=st.dictionaries(st.just("w"), st.integers(0, 10**10)),
    requester=st.sampled_from(["", "U1"]),
    failures_1h=st.integers(0, 3),
    problems=st.sampled_from([(), ("It is not known.",)]),
)
ARGS = st.dictionaries(
    st.just("x"), st.none() | st.booleans() | st.integers(-5, 5) | st.just("a")
)


def policy_of(tier: Tier, rules: list[tuple[Tier, str]], *, loose: bool) -> Policy:
    return Policy.model_validate(
        {
            "version": 1,
            "windows": {"w": {"tools": ["t"], "sum": 1, "within": "1h"}},
            "tools": {
                "t": {
                    "tier": tier,
                    "overridable": loose,
                    "raise": [
                        {"to": to, "when": when, "because": "why"} for to, when in rules
                    ],
                }
            },
        }
    )


@given(
    TIERS,
    st.lists(st.tuples(TIERS, WHEN), max_size=4),
    st.lists(st.tuples(TIERS, WHEN), max_size=2),
    ARGS,
    ANY_FACTS,
    st.none() | TIERS,
)
def test_no_rule_wish_or_fact_ever_lowers_a_tier(
    tier: Tier,
    rules: list[tuple[Tier, str]],
    more: list[tuple[Tier, str]],
    args: JsonObject,
    facts: Facts | None,
    asked: Tier | None,
) -> None:
    few = policy_of(tier, rules, loose=False)
    many = policy_of(tier, [*rules, *more], loose=False)

    plain = evaluate(few, agent="a", tool="t", args=args, facts=facts)
    raised = evaluate(
        few, agent="a", tool="t", args=args, facts=facts, requested_tier=asked
    )
    longer = evaluate(many, agent="a", tool="t", args=args, facts=facts)

    assert listed_tier(few, agent="a", tool="t") is tier
    assert tier.rank <= plain.tier.rank <= raised.tier.rank
    assert plain.tier.rank <= longer.tier.rank
    assert all(plain.tier.rank >= rule.to.rank for rule in plain.fired)
    if asked is None:
        return
    loose = evaluate(
        policy_of(tier, rules, loose=True),
        agent="a",
        tool="t",
        args=args,
        facts=facts,
        requested_tier=asked,
    )
    assert all(loose.tier.rank >= rule.to.rank for rule in loose.fired)
    assert (loose.tier is Tier.DENY) or tier is not Tier.DENY
    if facts is not None and facts.problems:
        assert loose.tier.rank >= Tier.ESCALATE.rank
