"""An agent's hints about its calls can raise and narrow them, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.policy.evaluate import Evaluation, evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Defaults, Policy, RaiseRule, ToolRule
from keyturn.gateway.protocol.records import Tier, Verb, join
from keyturn.gateway.protocol.wire import CallHint
from keyturn.gateway.service.submit.turn_evaluation import apply_hint

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
