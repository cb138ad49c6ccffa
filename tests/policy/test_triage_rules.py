"""A policy defines the scope and limit of triage; a raise by it only adds."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.approvals.quorum import clauses
from keyturn.gateway.policy.evaluate import Raise, evaluate
from keyturn.gateway.policy.load import BadPolicy, load_policy
from keyturn.gateway.policy.rules import TriageRule
from keyturn.gateway.protocol.records import Tier, join

POLICY = load_policy(
    """\
version: 1
defaults: {needs: support, triage: {timeout: 3s}}
roles: {support: {usergroups: [S0SUPPORT]}, senior: {users: [U0LEAD]}}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior}]}
tiers: {escalate: {needs: with_senior, expires_in: 5m}}
tools:
  look_up: {tier: auto}
  read_all: {tier: auto, triage: {tiers: auto, may_deny: true}}
  pay:
    tier: approve
    overridable: true
    raise: [{to: escalate, when: args.amount > 9, because: over 9}]
  quiet: {tier: approve, triage: {tiers: []}}
agents:
  night: {tools: {pay: {triage: {timeout: 9s}}}}
""",
    "p.yml",
)
TIERS = st.sampled_from(Tier)


def asked(tool: str, agent: str = "a", amount: float = 1) -> TriageRule | None:
    evaluation = evaluate(POLICY, agent=agent, tool=tool, args={"amount": amount})
    return evaluation.triage


def test_the_narrower_rule_replaces_the_wider_as_a_whole() -> None:
    assert asked("pay") == TriageRule(timeout=timedelta(seconds=3))
    assert asked("pay", "night") == TriageRule(timeout=timedelta(seconds=9))
    assert asked("read_all") == TriageRule(tiers=(Tier.AUTO,), may_deny=True)


def test_triage_is_asked_about_the_tier_that_a_call_has() -> None:
    assert asked("look_up") is None
    assert asked("quiet") is None
    assert asked("pay", amount=10) is not None
    assert asked("unlisted") is not None


@pytest.mark.parametrize(
    ("rest", "is_asked"),
    [
        ("", False),
        ("defaults: {triage: {timeout: 3s}}", True),
        ("agents: {night: {tools: {pay: {triage: {timeout: 3s}}}}}", True),
        ("agents: {night: {tools: {pay: {tier: approve}}}}", False),
    ],
)
def test_a_policy_knows_whether_it_uses_triage(rest: str, *, is_asked: bool) -> None:
    assert load_policy(f"version: 1\n{rest}\n", "p.yml").asks_triage is is_asked


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{tiers: [deny]}", "is 'deny'; use one of approve, auto, escalate, notify."),
        ("{timeout: 31s}", "30s is the most"),
        ("{may_deny: yes}", "'tools.pay.triage.may_deny'"),
    ],
)
def test_a_bad_rule_is_refused_with_its_line(rule: str, said: str) -> None:
    text = f"version: 1\ntools:\n  pay:\n    tier: approve\n    triage: {rule}\n"

    with pytest.raises(BadPolicy) as caught:
        load_policy(text, "p.yml")

    (problem,) = caught.value.problems
    assert problem.location == "p.yml:5"
    assert said in problem.text


@given(
    st.sampled_from(["look_up", "pay", "quiet", "unlisted"]),
    st.none() | TIERS,
    st.lists(TIERS, max_size=3),
)
def test_what_others_ask_for_is_joined_whatever_the_agent_wishes(
    tool: str, requested_tier: Tier | None, asks: list[Tier]
) -> None:
    also = [Raise(to=tier, reason="because") for tier in asks]

    alone = evaluate(
        POLICY, agent="a", tool=tool, args={}, requested_tier=requested_tier
    )
    joined = evaluate(
        POLICY,
        agent="a",
        tool=tool,
        args={},
        requested_tier=requested_tier,
        raises=also,
    )

    assert joined.tier is join(alone.tier, *asks)
    assert joined.reasons == (*alone.reasons, *("because" for _ in asks))


def test_a_raise_brings_the_people_and_the_time_of_the_higher_tier() -> None:
    evaluation = evaluate(
        POLICY,
        agent="a",
        tool="pay",
        args={"amount": 1},
        raises=[Raise(to=Tier.ESCALATE, reason="odd")],
    )

    assert clauses(evaluation.requirement) == {
        frozenset({"support", "senior"}): 2,
        frozenset({"senior"}): 1,
    }
    assert evaluation.ttl_ms == 300_000
