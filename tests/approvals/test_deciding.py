"""One decision on one call: which ones count, and why."""

from __future__ import annotations

import json

import pytest

from keyturn.gateway.approvals.changes import Change, first_of
from keyturn.gateway.approvals.deciding import MAX_TEXT, not_as_seen
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Changed,
    Decision,
    Edit,
    Expired,
    Invalid,
    Outcome,
    Reconcile,
    Reject,
    Respond,
    Reviewer,
    Stale,
    TooSoon,
    Voted,
    explain_state,
)
from keyturn.gateway.approvals.events import AFTER_MS, EventName
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.approvals.waiting_changes import extend
from keyturn.gateway.protocol.records import (
    Finding,
    ItemState,
    Person,
    Result,
    Tier,
    Verb,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import AnswerKind
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    EVE,
    NOW_MS,
    ONE,
    ONE_SENIOR,
    SENIOR,
    SUPPORT,
    TWO,
    an_approval,
    an_item,
    changed,
    click_on,
    evaluation,
    forbidden,
    left,
    reviewer,
    say,
)

HALF: JsonObject = {"order_id": "78291", "amount": 449.5}
EDIT = Edit(args=HALF, reason="half was damaged")
EITHER = Requirement(approvals=1, of=(SUPPORT, SENIOR))
MAKER = Requirement(approvals=1, of=(SUPPORT,), editor_may_vote=False)


def test_an_edit_authorizes_other_arguments_and_records_the_difference() -> None:
    change = changed(say(an_approval(), EDIT))

    [item] = change.approval.items
    record = item.edit
    assert record
    assert (item.state, item.args) == (ItemState.AUTHORIZED, HALF)
    assert change.approval.version == 2
    assert record.patch == ({"op": "replace", "path": "/amount", "value": 449.5},)
    assert (record.by, record.reason) == (ANA, "half was damaged")
    assert record.original_hash != record.edited_hash == item.action_hash


def test_unchanged_arguments_are_an_approve_and_not_an_edit() -> None:
    same = Edit(args={"amount": 899.0, "order_id": "78291"}, reason="looks right")

    change = changed(say(an_approval(), same))

    [item] = change.approval.items
    assert (item.edit, change.approval.version) == (None, 1)
    assert item.decision
    assert (item.decision.verb, item.decision.by) == (Verb.APPROVE, ANA)
    assert [event.name for event in change.events] == [EventName.ITEM_AUTHORIZED]


@pytest.mark.parametrize(
    ("args", "pointer"),
    [
        ({"order_id": "78291", "amount": "449.50"}, "/amount"),
        ({"order_id": "78291"}, "/amount"),
        ({**HALF, "smuggled": 1}, ""),
    ],
)
def test_an_edit_outside_the_schema_is_refused(args: JsonObject, pointer: str) -> None:
    result = say(an_approval(), Edit(args=args))
    assert isinstance(result, Invalid)
    assert list(result.errors) == [pointer]


def test_an_edit_that_no_strict_json_can_hold_is_refused_at_its_place() -> None:
    result = say(an_approval(an_item(schema=None)), Edit(args={"lines": [1, 2**63]}))
    assert isinstance(result, Invalid)
    assert result.errors["/lines/1"].startswith("an integer has more than 64 bits")


def test_reject_and_respond_end_the_item_with_their_text() -> None:
    assert left(say(an_approval(), Reject(reason="no"))).state is ItemState.REJECTED
    answered = left(say(an_approval(), Respond(message="ask")))
    assert answered.decision
    assert (answered.state, answered.decision.text) == (ItemState.ANSWERED, "ask")
    empty = say(an_approval(), Respond(message=" \n"))
    assert empty == Invalid(errors={"": "The answer is empty."})


@pytest.mark.parametrize("reason", ["", "x" * 3001])
@pytest.mark.parametrize("refund", ["899", "450"])
def test_a_bad_reason_is_no_problem_of_an_argument(refund: str, reason: str) -> None:
    args: JsonObject = {"refund": "899", "reason": "damaged"}
    item = an_item(args=args, schema=None, requires_reason=(Verb.APPROVE,))

    result = say(
        an_approval(item), Edit(args={**args, "refund": refund}, reason=reason)
    )

    assert isinstance(result, Invalid)
    assert list(result.errors) == [""]


@pytest.mark.parametrize(
    "decision", [Reject(reason="x" * 3001), Respond(message="x" * 3001)]
)
def test_a_text_longer_than_slack_can_hold_is_refused(decision: Decision) -> None:
    assert isinstance(say(an_approval(), decision), Invalid)


def test_a_decision_carries_its_reason_where_the_policy_asks_for_one() -> None:
    strict = an_approval(an_item(requires_reason=(Verb.APPROVE, Verb.REJECT)))

    without = say(strict, Approve(reason=" "))
    done = changed(say(strict, Approve(reason="I called them")))

    assert isinstance(without, Invalid)
    assert list(without.errors) == ["/reason"]
    assert isinstance(say(strict, Edit(args=HALF)), Invalid)
    assert isinstance(say(strict, Reject(reason=" ")), Invalid)
    assert left(say(strict, Reject(reason="x"))).state is ItemState.REJECTED
    assert done.approval.items[0].votes[0].reason == "I called them"
    assert done.events[-1].reason == "I called them"


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (reviewer(CHLOE), "Please ask one of them"),
        (reviewer(ANA, AccountKind.GUEST), "Guests"),
        (reviewer(ANA, AccountKind.STRANGER), "other organizations"),
        (reviewer(ANA, AccountKind.BOT), "Bots"),
        (reviewer(ANA, AccountKind.DEACTIVATED), "deactivated"),
        (reviewer(ANA, AccountKind.UNKNOWN), "did not say who you are"),
    ],
)
@pytest.mark.parametrize("decision", [Approve(), EDIT, Reject(), Respond(message="y")])
def test_only_reviewers_decide(by: Reviewer, words: str, decision: Decision) -> None:
    assert words in forbidden(say(an_approval(), decision, by))


@pytest.mark.parametrize("roles", [(), (Role(name="nobody"),)])
def test_an_empty_list_of_reviewers_means_nobody(roles: tuple[Role, ...]) -> None:
    approval = an_approval(an_item(requirement=Requirement(approvals=1, of=roles)))
    assert "nobody can approve" in forbidden(say(approval, Approve()))


def test_a_second_decision_is_told_who_was_faster() -> None:
    first = changed(say(an_approval(), Approve()))
    click = click_on(an_approval())

    second = say(first.approval, Reject(), BEN, click=click)

    assert isinstance(second, Stale)
    assert second.item.decision
    assert second.item.decision.by == ANA


def test_a_click_that_names_another_call_or_none_is_refused() -> None:
    approval = an_approval(an_item(0), an_item(1))
    borrowed = click_on(approval, 0).with_(action_hash=approval.items[1].action_hash)
    missing = [click_on(approval).with_(index=index) for index in (-1, 2)]
    for click in (borrowed, *missing):
        assert isinstance(say(approval, Approve(), click=click), Changed)
        assert isinstance(not_as_seen(approval, click, NOW_MS), Changed)


def test_a_decision_that_the_tool_does_not_allow_is_refused() -> None:
    plain = an_approval(an_item(allow=(Verb.APPROVE, Verb.REJECT)))
    assert isinstance(say(plain, EDIT), Invalid)
    assert isinstance(say(plain, Respond(message="x")), Invalid)
    # An edit that changes nothing is no way around it.
    edits = an_approval(an_item(allow=(Verb.EDIT, Verb.REJECT)))
    same = Edit(args={"order_id": "78291", "amount": 899})
    assert isinstance(say(edits, same), Invalid)
    assert left(say(edits, EDIT)).edit


def test_who_may_decide_a_call_may_change_it_into_one_that_is_for_others() -> None:
    approval = an_approval(an_item(requirement=EITHER))
    senior = evaluation(requirement=ONE_SENIOR)
    either = evaluation(requirement=EITHER)

    item = left(say(approval, EDIT, policy_now=senior, waiting_now=either))

    assert (item.state, item.votes) == (ItemState.PENDING, ())
    assert item.requirement.roles == (SENIOR,)
    assert item.principals == (ANA,)
    # Nor who may not decide the call as it waits, by the policy of now.
    forbidden(say(approval, EDIT, EVE, policy_now=senior, waiting_now=either))
    forbidden(say(approval, EDIT, policy_now=senior, waiting_now=senior))
    forbidden(say(approval, Approve(), policy_now=senior, waiting_now=either))


def test_a_policy_that_denies_now_wins_over_the_frozen_one() -> None:
    denied = evaluation(Tier.DENY)
    forbidden(say(an_approval(), Approve(), policy_now=denied))
    assert isinstance(say(an_approval(), EDIT, policy_now=denied), Invalid)


MINUTE_MS = 60_000
LATE_MS = NOW_MS + 30 * MINUTE_MS


def test_a_policy_that_gives_less_time_now_ends_approvals_and_edits() -> None:
    now = evaluation(ttl_ms=20 * MINUTE_MS)

    for decision in (Approve(), EDIT):
        late = say(an_approval(), decision, now_ms=LATE_MS, policy_now=now)
        assert "the policy now gives less time" in forbidden(late)
    changed(say(an_approval(), Reject(), now_ms=LATE_MS, policy_now=now))


def test_time_that_people_added_outlives_a_policy_that_gives_less() -> None:
    extended = changed(extend(an_approval(), reviewer(ANA), now_ms=NOW_MS)).approval
    now = evaluation(ttl_ms=30 * MINUTE_MS)

    found = say(extended, Approve(), now_ms=NOW_MS + 45 * MINUTE_MS, policy_now=now)

    assert left(found).state is ItemState.AUTHORIZED


def test_a_call_that_is_raised_now_has_the_time_of_its_tier_once() -> None:
    now = evaluation(Tier.ESCALATE, TWO, ttl_ms=20 * MINUTE_MS)

    voted = changed(say(an_approval(), Approve(), now_ms=LATE_MS, policy_now=now))
    again = say(voted.approval, Approve(), BEN, now_ms=LATE_MS + 1, policy_now=now)

    ends_ms = LATE_MS + 20 * MINUTE_MS
    assert isinstance(voted.waits_on, Voted)
    assert voted.approval.expires_at_ms == ends_ms
    assert changed(again).approval.expires_at_ms == ends_ms


def test_a_reason_that_the_policy_of_now_asks_for_is_asked_for() -> None:
    now = evaluation(requires_reason=(Verb.EDIT, Verb.REJECT))

    for decision in (Edit(args=HALF), Reject(reason=" ")):
        assert isinstance(say(an_approval(), decision, policy_now=now), Invalid)
    changed(say(an_approval(), Reject(reason="twice"), policy_now=now))


def test_a_raise_by_a_vote_ends_with_its_cause_and_one_by_an_edit_does_not() -> None:
    raises, calm = evaluation(Tier.ESCALATE, TWO), evaluation()
    voted = changed(say(an_approval(), Approve(), policy_now=raises)).approval
    edited = changed(say(an_approval(), EDIT, policy_now=raises)).approval.items[0]

    # Who voted already is not asked for more.
    forbidden(say(voted, Approve(), policy_now=raises))
    done = left(say(voted, Approve(), policy_now=calm))

    assert (done.state, len(done.votes)) == (ItemState.AUTHORIZED, 1)
    assert first_of(edited, calm) == edited
    assert (edited.tier, edited.floor) == (Tier.ESCALATE, None)


@pytest.mark.parametrize(
    ("args", "pointers"),
    [({"amount": 60}, ["/amount"]), ({"amount": 1, "to": "me"}, [""])],
)
def test_an_edit_has_to_fit_the_schema_of_now(
    args: JsonObject, pointers: list[str]
) -> None:
    amount: JsonObject = {"type": "number", "maximum": 50}
    now = evaluation(args_schema={"properties": {"amount": amount}})
    approval = an_approval(an_item(schema=None))

    found = say(approval, Edit(args=args), policy_now=now)

    assert isinstance(found, Invalid)
    assert list(found.errors) == pointers
    changed(say(approval, Edit(args={"amount": 40}), policy_now=now))


@pytest.mark.parametrize(("then", "now"), [(15, 120), (120, 15)])
def test_the_shorter_time_of_an_authorization_counts(then: int, now: int) -> None:
    asked = an_item().with_(authorization_ms=then * MINUTE_MS)
    policy_now = evaluation(authorization_ms=now * MINUTE_MS)

    item = left(say(an_approval(asked), Approve(), policy_now=policy_now))

    assert item.lapses_at_ms - item.changed_at_ms == 15 * MINUTE_MS


def test_an_edited_call_is_described_as_it_would_run() -> None:
    asked = an_item().with_(
        description="Refund 899", link="https://a.example/1", agent_description="Pay"
    )
    now = evaluation(description="Refund 449.5", link="https://a.example/2")

    item = left(say(an_approval(asked), EDIT, policy_now=now))

    assert (item.description, item.link) == ("Refund 449.5", "https://a.example/2")
    assert not item.agent_description


def test_a_frozen_call_cannot_be_approved_but_rejected() -> None:
    frozen, approval = evaluation(stopped="Refunds are frozen."), an_approval()
    found = say(approval, Approve(), policy_now=frozen)
    assert forbidden(found) == "Refunds are frozen."
    changed(say(approval, Reject(), policy_now=frozen))


def test_a_first_quick_approval_of_each_person_does_not_count() -> None:
    approval = an_approval(an_item(tier=Tier.ESCALATE, requirement=TWO))
    policy, later_ms = evaluation(Tier.ESCALATE, TWO, ask_again_ms=5_000), NOW_MS + 3000

    def approved(by: Person, now_ms: int = NOW_MS) -> Change | Outcome:
        return say(approval, Approve(), by, now_ms=now_ms, policy_now=policy)

    for person in (BEN, CHLOE):
        quick = changed(approved(person))
        assert isinstance(quick.waits_on, TooSoon)
        [event] = quick.events
        assert (event.name, event.data[AFTER_MS]) == (EventName.ITEM_ASKED_AGAIN, "0")
        approval = quick.approval
    assert approval.items[0].votes == ()
    # A double click is one click.
    assert "sooner than the policy accepts" in forbidden(approved(BEN))
    voted = changed(approved(BEN, later_ms))
    approval = voted.approval
    assert isinstance(voted.waits_on, Voted)
    assert left(approved(CHLOE, later_ms)).state is ItemState.AUTHORIZED


def test_only_an_escalated_call_is_asked_about_again() -> None:
    policy_now = evaluation(ask_again_ms=5_000)
    found = left(say(an_approval(), Approve(), policy_now=policy_now))
    assert found.state is ItemState.AUTHORIZED


def test_a_second_approval_counts_after_the_clock_went_back() -> None:
    approval = an_approval(an_item(tier=Tier.ESCALATE))
    policy = evaluation(Tier.ESCALATE, ask_again_ms=5_000)

    # A fail-over to a server whose clock is five minutes behind.
    for passed_ms in (0, 10_000, 20_000):
        now_ms = NOW_MS - 5 * 60_000 + passed_ms
        if approval.items[0].is_pending:
            result = say(approval, Approve(), now_ms=now_ms, policy_now=policy)
            approval = changed(result).approval

    assert not approval.items[0].is_pending, len(approval.items[0].too_soon)


def test_an_edit_keeps_the_order_and_types_that_the_agent_wrote() -> None:
    item = an_item(args={"amount": 7, "order_id": "1"})
    item = item.with_(spelled={"order_id": "1", "amount": 7.0})

    edited = left(say(an_approval(item), Edit(args={"amount": 7, "order_id": "2"})))

    answer = answer_for(edited)
    assert answer
    assert json.dumps(answer.args) == '{"order_id": "2", "amount": 7.0}'


# The requester and an editor may reject a call that they may not approve.


def test_who_asked_for_a_call_takes_it_back_and_the_agent_is_told_why() -> None:
    change = changed(say(an_approval(), Reject(reason="changed my mind"), DAN))

    [item] = change.approval.items
    [event] = change.events
    answer = answer_for(item)
    assert (item.state, event.name) == (ItemState.WITHDRAWN, EventName.ITEM_WITHDRAWN)
    assert (event.actor, event.reason) == ("T0/U0DAN", "changed my mind")
    assert answer
    assert answer.type is AnswerKind.WITHDRAWN
    assert "Somebody who asked for this call took it back" in answer.message
    assert '"changed my mind"' in answer.message


def test_nobody_takes_a_call_back_in_the_place_of_another() -> None:
    approval = an_approval(an_item(requirement=TWO))
    ben = reviewer(BEN).with_(stands_in_for=(reviewer(DAN),))
    dan = reviewer(DAN).with_(stands_in_for=(reviewer(CHLOE),))

    assert left(say(approval, Reject(), ben)).state is ItemState.REJECTED
    by_dan = left(say(approval, Reject(), dan)).decision
    assert by_dan
    assert by_dan.on_behalf_of == ()


@pytest.mark.parametrize("decision", [Approve(), EDIT, Respond(message="x")])
def test_who_asked_may_say_nothing_but_no_and_is_told_so(decision: Decision) -> None:
    reason = forbidden(say(an_approval(), decision, DAN))
    assert "You asked for this" in reason
    assert "You can reject it if you no longer want it." in reason
    fixed = an_approval(an_item(allow=(Verb.APPROVE,)))
    assert "You can" not in forbidden(say(fixed, Approve(), DAN))
    assert isinstance(say(fixed, Reject(), DAN), Invalid)


@pytest.mark.parametrize("account", sorted({*AccountKind} - {AccountKind.MEMBER}))
def test_only_a_member_takes_a_call_back(account: AccountKind) -> None:
    forbidden(say(an_approval(), Reject(), reviewer(DAN, account)))


@pytest.mark.parametrize(
    ("requirement", "tier", "now"),
    [
        (ONE, Tier.ESCALATE, TWO),
        (ONE, Tier.APPROVE, ONE_SENIOR),
        (MAKER, Tier.APPROVE, MAKER),
    ],
)
def test_who_changed_a_call_may_still_reject_it_and_not_approve_it(
    requirement: Requirement, tier: Tier, now: Requirement
) -> None:
    policy_now = evaluation(tier, now)
    approval = an_approval(an_item(requirement=requirement))

    edit = changed(say(approval, EDIT, policy_now=policy_now))

    assert isinstance(edit.waits_on, Voted)
    assert edit.waits_on.have == 0
    again = forbidden(say(edit.approval, Approve(), policy_now=policy_now))
    assert "You edited this" in again
    assert "You can still reject it." in again
    no = say(edit.approval, Reject(), policy_now=policy_now)
    assert left(no).state is ItemState.REJECTED
    if now is MAKER:
        assert left(say(edit.approval, Approve(), BEN)).state is ItemState.AUTHORIZED


# A click on an older version is answered with the state of the call.


@pytest.mark.parametrize("state", ItemState)
@pytest.mark.parametrize("is_late", [False, True])
def test_an_old_click_gets_its_outcome(state: ItemState, *, is_late: bool) -> None:
    item = an_item().with_(state=state, changed_at_ms=NOW_MS)
    approval = an_approval(item).with_(version=2)
    now_ms = approval.expires_at_ms if is_late else NOW_MS
    click = click_on(approval).with_(version=1)
    said = explain_state(approval, 0, seen_version=1, now_ms=now_ms)
    assert said == say(approval, Approve(), click=click, now_ms=now_ms)


def test_what_ended_a_call_is_told_before_its_new_version() -> None:
    waits, ran = an_item(0), an_item(1).with_(state=ItemState.EXECUTED)
    approval = an_approval(waits, ran).with_(version=2)
    late_ms = approval.expires_at_ms

    def told(index: int | None, now_ms: int = NOW_MS) -> object:
        return explain_state(approval, index, seen_version=1, now_ms=now_ms)

    # None is the batch; call 2 is not there.
    for index in (0, None, 2):
        assert told(index) == Changed(seen_version=1, version=2)
    assert told(0, late_ms) == Expired(expires_at_ms=late_ms)
    assert told(1, late_ms) == Stale(item=ran)


GROUPS = SUPPORT.with_(users=(), usergroups=("S0SUPPORT",))
TWO_FINDINGS = Requirement(approvals=2, of=(GROUPS, SENIOR), also=(ONE_SENIOR,))
IN_SUPPORT = reviewer(ANA).with_(usergroups=frozenset({"S0SUPPORT"}))


def doubtful(requirement: Requirement = ONE) -> Approval:
    item = an_item(requirement=requirement)
    return an_approval(
        item.with_(state=ItemState.IN_DOUBT, fence=1, result=Result(ok=False))
    )


def found(
    approval: Approval,
    who: Reviewer,
    *voters: Reviewer,
    finding: Finding = Finding.EXECUTED,
    note: str = "",
    policy_now: PolicyDecision | None = None,
) -> Change | Outcome:
    said = Reconcile(finding=finding, note=note)
    return say(approval, said, who, policy_now=policy_now, voters=voters)


@pytest.mark.parametrize("state", sorted(set(ItemState) - {ItemState.IN_DOUBT}))
def test_only_a_doubt_is_reconciled(state: ItemState) -> None:
    approval = an_approval(an_item().with_(state=state))
    assert found(approval, reviewer(ANA)) == Stale(item=approval.items[0])


def test_a_note_longer_than_slack_takes_is_refused() -> None:
    changed(found(doubtful(), reviewer(ANA), note="x" * MAX_TEXT))
    assert found(doubtful(), reviewer(ANA), note="x" * (MAX_TEXT + 1)) == Invalid(
        errors={"/note": "This is 3001 characters, 3000 are allowed."}
    )


@pytest.mark.parametrize(
    "again",
    [
        reviewer(ANA, AccountKind.UNKNOWN),
        reviewer(ANA).with_(unknown_groups=frozenset({"S0SUPPORT"})),
    ],
)
def test_the_last_finding_waits_for_slack_to_know_the_others(again: Reviewer) -> None:
    first = changed(found(doubtful(TWO_FINDINGS), IN_SUPPORT)).approval
    reason = forbidden(found(first, reviewer(CHLOE), again))
    assert reason.startswith("It could not be checked who is in support, so nothing")


@pytest.mark.parametrize(
    "again", [reviewer(ANA), IN_SUPPORT.with_(account=AccountKind.DEACTIVATED)]
)
def test_who_lost_the_role_since_counts_no_more(again: Reviewer) -> None:
    first = changed(found(doubtful(TWO_FINDINGS), IN_SUPPORT)).approval
    second = changed(found(first, reviewer(CHLOE), again))
    assert isinstance(second.waits_on, Voted)
    assert second.approval.items[0].state is ItemState.IN_DOUBT
    third = found(first, reviewer(CHLOE), IN_SUPPORT)
    assert left(third).state is ItemState.EXECUTED


def test_two_different_findings_settle_nothing() -> None:
    chloe = reviewer(CHLOE)
    first = changed(found(doubtful(TWO_FINDINGS), IN_SUPPORT)).approval

    other = changed(found(first, chloe, IN_SUPPORT, finding=Finding.SKIP))
    agreed = found(other.approval, IN_SUPPORT, chloe, finding=Finding.SKIP)

    assert other.approval.items[0].state is ItemState.IN_DOUBT
    # She may think again; her last word counts.
    assert left(agreed).state is ItemState.FAILED


@pytest.mark.parametrize(
    ("policy_now", "reason"),
    [
        (evaluation(), None),
        (evaluation(Tier.DENY), "no longer allows this call"),
        (evaluation(allow=(Verb.REJECT,)), "no longer allows this call"),
        (evaluation(stopped="All calls are stopped."), "All calls are stopped."),
    ],
)
def test_nothing_runs_again_that_the_policy_of_now_forbids(
    policy_now: PolicyDecision, reason: str | None
) -> None:
    ben = reviewer(BEN)
    again = found(doubtful(), ben, finding=Finding.RERUN, policy_now=policy_now)
    skipped = found(doubtful(), ben, finding=Finding.SKIP, policy_now=policy_now)
    assert left(skipped).state is ItemState.FAILED
    if reason is None:
        assert left(again).state is ItemState.AUTHORIZED
    else:
        assert reason in forbidden(again)
