"""The pure rules of a standing approval: its coverage, and its validity."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.ending import WORKSPACE_GONE, end_without_reviewers
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement, Role, Vote
from keyturn.gateway.approvals.revoking import revoke
from keyturn.gateway.approvals.similar import ALLOW_SIMILAR, Bounds, Cover, without
from keyturn.gateway.approvals.standing import (
    CHECKED_FOR_MS,
    POLICY_CHANGED,
    REVOKED,
    USED_UP,
    Wanted,
    bounds_of,
    covered_amount,
    end,
    end_reason,
    is_about,
    still_given,
    used,
    was_taken_back,
)
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import ItemState, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.approvals.builders import (
    ANA,
    DAN,
    NOW_MS,
    ONE_SENIOR,
    an_approval,
    an_item,
    evaluation,
    reviewer,
)

NOW = NOW_MS
UNTIL = NOW + 1000
GIVERS = Role(name="support", users=("U0ANA",), usergroups=("S0SUPPORT",))
OF_GIVERS = Requirement(approvals=1, of=(GIVERS,))
MEMBER = reviewer(ANA).with_(usergroups=frozenset({"S0SUPPORT"}))
ARGS: JsonObject = {"customer": "c1", "amount": 30, "order": "o1"}
BOUNDS = Bounds(
    agent="support",
    tool="refund",
    equal={"customer": "c1"},
    may_differ=("args.order",),
    amount="args.amount",
    each_micro=50_000_000,
    total_micro=100_000_000,
    uses=3,
    until_ms=UNTIL,
    source="ap_1.0",
)


def standing(state: ItemState = ItemState.AUTHORIZED, **changes: object) -> Approval:
    """Return a standing approval that Ana gave."""
    document = digest.action_document(
        tool=ALLOW_SIMILAR,
        args=BOUNDS.model_dump(mode="json"),
        ctx=an_item().ctx.as_dict(),
        salt="00" * 16,
    )
    action_hash = digest.action_hash(document)
    vote = Vote(by=ANA, roles=("support",), action_hash=action_hash, at_ms=NOW)
    item = an_item(requirement=OF_GIVERS).with_(
        tool=ALLOW_SIMILAR,
        requested=document,
        action=document,
        is_standing=True,
        state=state,
        changed_at_ms=NOW,
        lapses_at_ms=UNTIL,
        votes=(vote,),
    )
    return an_approval(item).with_(policy_digest=POLICY, **changes)


def decision(tier: Tier = Tier.APPROVE, **changes: object) -> PolicyDecision:
    return evaluation(tier, OF_GIVERS).with_(**changes)


POLICY = decision().policy_digest


def wanted(args: JsonObject = ARGS, **changes: object) -> Wanted:
    given: dict[str, object] = {
        "agent": "support",
        "tool": "refund",
        "args": args,
        "evaluation": decision(),
        "principals": (DAN,),
    }
    return Wanted(**(given | changes))  # type: ignore[arg-type]


def amount(call: Wanted, by: Approval | None = None, now_ms: int = NOW) -> int | None:
    return covered_amount(by or standing(), call, now_ms=now_ms)


@pytest.mark.parametrize(
    "evaluation",
    [
        decision(Tier.ESCALATE),
        decision(Tier.DENY),
        decision(Tier.NOTIFY),
        decision(allow=(Verb.REJECT,)),
        decision(asks_on_failure=True),
        decision(is_question=True),
        decision(policy_digest="sha256:then"),
        decision(requirement=OF_GIVERS.with_(approvals=2)),
        decision(requirement=ONE_SENIOR),
        decision(requirement=OF_GIVERS.with_(also=(ONE_SENIOR,))),
    ],
)
def test_givers_cover_only_what_they_could_approve(evaluation: PolicyDecision) -> None:
    assert amount(wanted(evaluation=evaluation)) is None


@pytest.mark.parametrize(
    "call",
    [
        wanted(agent="ops"),
        wanted(tool="Refund"),
        wanted({**ARGS, "customer": "c2"}),
        wanted({**ARGS, "customer": "c1 "}),
        wanted({"amount": 30, "order": "o1"}),
        wanted({**ARGS, "extra": None}),
        wanted(principals=(ANA,)),
    ],
)
def test_a_call_of_another_kind_is_not_covered(call: Wanted) -> None:
    assert amount(call) is None


def test_a_call_is_similar_by_what_it_was_or_what_it_was_edited_into() -> None:
    item = an_item(args={"customer": "c1", "amount": 1}).with_(tool="refund")
    other = an_item(args={"customer": "c2", "amount": 1}).with_(tool="refund")
    assert is_about(standing(), item)
    assert is_about(standing(), other.with_(requested=item.requested))
    assert not is_about(standing(), other)


def test_no_call_has_more_than_the_amount_of_one() -> None:
    assert amount(wanted({**ARGS, "amount": 50})) == 50_000_000
    assert amount(wanted({**ARGS, "amount": 50.000001})) is None


def test_without_votes_for_exactly_these_bounds_nothing_is_covered() -> None:
    [item] = standing().items
    [vote] = item.votes
    other = vote.with_(action_hash="sha256:other")

    for votes in ((), (other,)):
        found = standing().replacing(item.with_(votes=votes))
        assert amount(wanted(), found) is None


def test_it_covers_only_while_it_is_in_force() -> None:
    call = wanted()

    assert amount(call, now_ms=UNTIL - 1) is not None
    assert amount(call, now_ms=UNTIL) is None
    for state in set(ItemState) - {ItemState.AUTHORIZED}:
        assert amount(call, standing(state)) is None


def test_slacks_word_on_the_givers_is_good_for_a_while() -> None:
    def at(now_ms: int, checked_ms: int = 0) -> int | None:
        found = standing(checked_at_ms=checked_ms)
        [item] = found.items
        found = found.replacing(item.with_(lapses_at_ms=NOW * 100))
        return amount(wanted(), found, now_ms)

    late = NOW + CHECKED_FOR_MS + 1
    assert at(late - 1) is not None
    assert at(late) is None
    assert at(late, checked_ms=late) is not None


def test_uses_and_the_total_end_it() -> None:
    one, cover = used(standing(), "a.0", 60_000_000, NOW)
    full, _ = used(one, "a.1", 40_000_000, NOW)
    three, _ = used(used(one, "a.1", 1, NOW)[0], "a.2", 1, NOW)

    assert (cover.uses_left, cover.total_left_micro) == (2, 40_000_000)
    assert amount(wanted({**ARGS, "amount": 40}), one) == 40_000_000
    assert amount(wanted({**ARGS, "amount": 40.000001}), one) is None
    assert amount(wanted({**ARGS, "amount": 0}), three) is None
    assert end_reason(one, POLICY) == ""
    assert end_reason(full, POLICY) == end_reason(three, POLICY) == USED_UP
    assert end_reason(one, "sha256:other") == POLICY_CHANGED


def test_only_an_end_for_a_cause_takes_back_what_it_opened() -> None:
    found = standing()
    revoked = end(found, REVOKED, NOW, by=MEMBER)
    used_up = end(found, USED_UP, NOW)
    assert revoked
    assert used_up

    assert not was_taken_back(found)
    assert was_taken_back(revoked.approval)
    assert not was_taken_back(used_up.approval)
    assert was_taken_back(None)
    assert end(revoked.approval, REVOKED, NOW) is None
    assert revoked.events[0].actor == "T0/U0ANA"


@pytest.mark.parametrize(
    ("ana", "is_given"),
    [
        (MEMBER, True),
        (MEMBER.with_(usergroups=frozenset[str]()), True),  # listed by id as well
        (MEMBER.with_(account=AccountKind.DEACTIVATED), False),
        (MEMBER.with_(account=AccountKind.GUEST), False),
        (MEMBER.with_(account=AccountKind.UNKNOWN), None),
    ],
)
def test_it_lasts_as_long_as_its_roles(ana: Reviewer, *, is_given: bool | None) -> None:
    assert still_given(standing(), [ana]) is is_given


def test_arguments_inside_others_can_be_free() -> None:
    args: JsonObject = {"to": {"id": 1, "name": "x"}, "list": [{"id": 1}]}

    assert without(args, ["args.to.id"]) == {"to": {"name": "x"}, "list": [{"id": 1}]}
    assert without(args, ["args.list.0", "args.to.id.more", "args.none"]) == args


@pytest.mark.parametrize("odd", ["\ud800", 2**60])
def test_a_call_that_cannot_be_written_down_is_not_covered(odd: str | int) -> None:
    assert amount(wanted({**ARGS, "note": odd})) is None


@pytest.mark.parametrize(
    "odd", [float("inf"), -1, 10**40, "1e2", "01", None, True, [3]]
)
def test_what_is_no_plain_amount_is_not_covered(odd: JsonValue) -> None:
    assert amount(wanted({**ARGS, "amount": odd})) is None
    assert amount(wanted({"customer": "c1", "order": "o1"})) is None


def test_other_approvals_have_no_bounds() -> None:
    [item] = standing().items

    with pytest.raises(ValueError, match="no standing approval"):
        bounds_of(standing().replacing(item.with_(is_standing=False)))


def test_a_notification_that_a_standing_approval_opened_ends_with_it() -> None:
    cover = Cover(approval="ap_default_1", given_by=(ANA,), uses_left=1)
    item = an_item().with_(state=ItemState.AUTHORIZED, cover=cover)
    policy_now = evaluation(Tier.NOTIFY)
    approval = an_approval(item)

    def ended(by: Approval | None) -> bool:
        found = revoke(approval, item, policy_now, now_ms=NOW, standing=by)
        return found is not None

    assert not ended(approval), "the policy needs nobody for it any more"
    assert ended(None)


def test_a_standing_approval_ends_with_the_app_in_its_workspace() -> None:
    change = end_without_reviewers(standing(), NOW_MS)

    assert change is not None
    item = change.approval.items[0]
    assert item.state is ItemState.LAPSED
    assert item.revoked is not None
    assert item.revoked.reason == WORKSPACE_GONE
