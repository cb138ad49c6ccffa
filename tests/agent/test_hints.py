"""What an agent says of its own calls can raise and narrow them, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.approvals.record import Demand, Role, Verb
from gateway.approvals.tiers import Tier
from gateway.policy.evaluate import Ruling, evaluate
from gateway.policy.load import load_policy
from gateway.service.hints import MAX_DESCRIPTION, apply_hint
from gateway.wire import CallHint


def _verbs(names: str) -> tuple[Verb, ...]:
    return tuple(Verb(name) for name in names.split())


HINTS = st.none() | st.builds(
    CallHint,
    hold=st.none() | st.booleans(),
    allow=st.none() | st.lists(st.sampled_from(Verb)).map(tuple),
    description=st.text(),
)


def ruled(
    tier: Tier = Tier.APPROVE,
    allow: tuple[Verb, ...] = tuple(Verb),
    description: str = "",
    redact: tuple[str, ...] = (),
) -> Ruling:
    return Ruling(
        tier=tier,
        reasons=("policy",),
        allow=allow,
        demand=Demand(approvals=1, of=(Role(name="support", users=("U1",)),)),
        ttl_ms=1,
        channel="#agents",
        description=description,
        redact=redact,
    )


RULINGS = st.builds(
    ruled,
    tier=st.sampled_from(Tier),
    allow=st.lists(st.sampled_from(Verb), min_size=1, unique=True).map(tuple),
    description=st.sampled_from(["", "Refund 5"]),
    redact=st.sampled_from([(), ("args.card",)]),
)


@given(RULINGS, HINTS)
def test_no_hint_lowers_what_policy_does_not_mark_overridable(
    ruling: Ruling, hint: CallHint | None
) -> None:
    joined = apply_hint(ruling, hint, is_overridable=False)

    assert joined.tier.rank >= ruling.tier.rank
    assert joined.tier in {ruling.tier, Tier.APPROVE}
    assert {*joined.allow} <= {*ruling.allow, Verb.REJECT}
    assert joined.demand == ruling.demand


@given(RULINGS, HINTS)
def test_only_one_reviewer_is_ever_waived_and_only_by_a_clear_no(
    ruling: Ruling, hint: CallHint | None
) -> None:
    joined = apply_hint(ruling, hint, is_overridable=True)

    is_waived = joined.tier.rank < ruling.tier.rank
    is_no = hint is not None and hint.hold is False
    assert is_waived == (is_no and ruling.tier is Tier.APPROVE)


@given(RULINGS, HINTS)
def test_a_reviewer_can_say_no_wherever_policy_lets_them(
    ruling: Ruling, hint: CallHint | None
) -> None:
    joined = apply_hint(ruling, hint, is_overridable=True)

    assert joined.allow
    assert (Verb.REJECT in joined.allow) or (Verb.REJECT not in ruling.allow)


@given(RULINGS, HINTS, HINTS)
def test_a_second_hint_gives_back_nothing_that_the_first_took(
    ruling: Ruling, first: CallHint | None, second: CallHint | None
) -> None:
    once = apply_hint(ruling, first, is_overridable=False)
    twice = apply_hint(once, second, is_overridable=False)

    assert twice.tier.rank >= once.tier.rank
    assert {*twice.allow} <= {*once.allow, Verb.REJECT}


def test_no_hint_changes_nothing() -> None:
    ruling = ruled()

    assert apply_hint(ruling, None, is_overridable=True) is ruling
    assert apply_hint(ruling, CallHint(), is_overridable=True) == ruling


@pytest.mark.parametrize("tier", [Tier.AUTO, Tier.NOTIFY])
def test_a_call_that_would_run_is_held_when_the_agent_asks(tier: Tier) -> None:
    joined = apply_hint(ruled(tier), CallHint(hold=True), is_overridable=False)

    assert joined.tier is Tier.APPROVE
    assert joined.reasons[0] == "policy"
    assert "asks for a person" in joined.reasons[1]


def test_a_waived_person_is_named_among_the_reasons() -> None:
    joined = apply_hint(ruled(), CallHint(hold=False), is_overridable=True)

    assert joined.tier is Tier.AUTO
    assert "waive" in joined.reasons[-1]


@pytest.mark.parametrize("tier", [Tier.ESCALATE, Tier.DENY])
@pytest.mark.parametrize("hint", [CallHint(hold=True), CallHint(hold=False)])
def test_two_people_and_a_no_stay_what_they_are(tier: Tier, hint: CallHint) -> None:
    ruling = ruled(tier)

    assert apply_hint(ruling, hint, is_overridable=True) == ruling


@pytest.mark.parametrize(
    ("given_verbs", "wished", "left"),
    [
        ("approve edit reject respond", "approve reject", "approve reject"),
        ("approve edit reject respond", "approve", "approve reject"),
        ("approve edit", "approve respond", "approve"),
        ("approve edit", "respond", "reject"),
        ("reject approve", "approve reject", "reject approve"),
        ("approve reject", "", "reject"),
    ],
)
def test_decisions_are_narrowed_to_those_wished_for(
    given_verbs: str, wished: str, left: str
) -> None:
    ruling = ruled(allow=_verbs(given_verbs))

    joined = apply_hint(ruling, CallHint(allow=_verbs(wished)), is_overridable=True)

    assert joined.allow == _verbs(left)


def test_a_description_is_one_line_of_the_agents_and_says_so() -> None:
    hint = CallHint(description=" Drop\n\nthe   table ")

    assert apply_hint(ruled(), hint, is_overridable=False).description == (
        "The agent says: Drop the table"
    )


def test_a_long_description_is_cut_visibly() -> None:
    hint = CallHint(description="x" * (MAX_DESCRIPTION + 7))

    joined = apply_hint(ruled(), hint, is_overridable=False)

    assert joined.description.endswith("x… (7 more characters)")


@pytest.mark.parametrize(
    "ruling", [ruled(description="Refund 5"), ruled(redact=("args.card",))]
)
def test_a_description_neither_replaces_the_policys_nor_tells_what_it_hides(
    ruling: Ruling,
) -> None:
    hint = CallHint(description="harmless: card 4111 1111")

    joined = apply_hint(ruling, hint, is_overridable=True)

    assert joined.description == ruling.description


def test_a_call_raised_from_auto_can_be_approved_by_the_policys_reviewers() -> None:
    policy = load_policy(
        "version: 1\ndefaults: {reviewers: U0ANA}\ntools: {look_up: {tier: auto}}\n",
        "policy.yml",
    )
    ruling = evaluate(policy, agent="support", tool="look_up", args={})

    joined = apply_hint(ruling, CallHint(hold=True), is_overridable=False)

    assert joined.demand.approvals == 1
    assert [role.users for role in joined.demand.of] == [("U0ANA",)]
