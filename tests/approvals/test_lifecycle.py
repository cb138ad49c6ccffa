"""One table defines the allowed transitions."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Invalid, Respond
from keyturn.gateway.approvals.ending import (
    RESTORED,
    THREAD_LOST,
    doubt_restored,
    end_overdue,
    end_waiting,
    end_with_thread,
    end_without_reviewers,
)
from keyturn.gateway.approvals.executing import finish, shorten_claim
from keyturn.gateway.approvals.lifecycle import FINAL, TRANSITIONS, Transition, advance
from keyturn.gateway.approvals.quorum import is_dead_end
from keyturn.gateway.approvals.record import Approval, DecisionRecord, Item
from keyturn.gateway.approvals.requirement import Requirement, Revocation, Role, Vote
from keyturn.gateway.approvals.resume_value import answer_for, unknown_answer
from keyturn.gateway.errors import IllegalTransition
from keyturn.gateway.protocol.questions import QuestionSet
from keyturn.gateway.protocol.records import ItemState, Result, Verb
from keyturn.gateway.protocol.wire import Answer, AnswerKind
from tests.approvals.builders import (
    ANA,
    CHLOE,
    DAN,
    HOUR_MS,
    NOW_MS,
    ONE,
    an_approval,
    an_item,
    changed,
    left,
    say,
)

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"


@pytest.mark.parametrize(
    ("state", "transition"), list(itertools.product(ItemState, Transition)), ids=str
)
def test_only_table_rows_can_happen(state: ItemState, transition: Transition) -> None:
    if (state, transition) in TRANSITIONS:
        assert advance(state, transition) is TRANSITIONS[state, transition]
    else:
        with pytest.raises(IllegalTransition):
            advance(state, transition)


def test_nothing_executes_that_was_not_authorized() -> None:
    before_executing = {
        before for (before, _), after in TRANSITIONS.items() if after == "executing"
    }

    # What executes was authorized; another attempt may take over from a dead one.
    assert before_executing == {ItemState.AUTHORIZED, ItemState.EXECUTING}


def test_what_another_program_runs_never_counts_as_run_failed_or_in_doubt() -> None:
    reached, steps = {ItemState.HANDING_OVER}, len(ItemState)
    for _ in range(steps):
        reached |= {
            after
            for (before, _), after in TRANSITIONS.items()
            # A claim of such a call hands it over, and a doubt ends it.
            if before in reached and before is not ItemState.AUTHORIZED
        }

    assert reached == {
        ItemState.HANDING_OVER,
        ItemState.AUTHORIZED,
        ItemState.HANDED_OVER,
        ItemState.NOT_TAKEN,
        ItemState.WITHDRAWN,
        ItemState.LAPSED,
    }


def test_authorization_comes_from_a_decision_or_from_giving_a_claim_back() -> None:
    into = {
        (before, transition) for (before, transition), after in TRANSITIONS.items()
        if after is ItemState.AUTHORIZED
    }  # fmt: skip

    assert into == {
        (ItemState.PENDING, Transition.AUTHORIZE),
        (ItemState.PENDING, Transition.CLEAR),
        (ItemState.EXECUTING, Transition.RELEASE),
        (ItemState.IN_DOUBT, Transition.RETRY),
        (ItemState.HANDING_OVER, Transition.RELEASE),
    }


def test_every_state_reaches_an_end() -> None:
    for start in ItemState:
        reached = {start}
        for _ in ItemState:
            reached |= {after for (b, _), after in TRANSITIONS.items() if b in reached}
        assert reached & FINAL


def test_the_diagram_of_the_architecture_is_printed_from_the_table() -> None:
    rows = ["stateDiagram-v2", "    [*] --> pending"]
    rows += [
        f"    {before} --> {after}: {transition}"
        for (before, transition), after in TRANSITIONS.items()
    ]
    ends = FINAL | {ItemState.FAILED}
    rows += [f"    {state} --> [*]" for state in ItemState if state in ends]

    assert "\n".join(rows) in ARCHITECTURE.read_text(encoding="utf-8")


# A claim lasts as long as its lease, and its result is recorded once.

LEASE_MS = 60_000
RAN, FAILED = Result(ok=True), Result(ok=False)


def executing(**more: object) -> tuple[Approval, Item]:
    item = an_item().with_(state=ItemState.EXECUTING, fence=2, owner="w1", **more)
    return an_approval(item), item


def test_a_claim_that_a_clock_made_too_long_is_cut_to_its_lease() -> None:
    long = executing(claimed_until_ms=NOW_MS + LEASE_MS + 1)
    right = executing(claimed_until_ms=NOW_MS + LEASE_MS)

    cut = shorten_claim(*long, lease_ms=LEASE_MS, now_ms=NOW_MS)

    assert cut is not None
    assert cut.approval.items[0].claimed_until_ms == NOW_MS + LEASE_MS
    assert cut.approval.rev == long[0].rev + 1
    assert shorten_claim(*right, lease_ms=LEASE_MS, now_ms=NOW_MS) is None


@pytest.mark.parametrize("result", [RAN, FAILED, None])
def test_the_same_report_again_was_recorded_before(result: Result | None) -> None:
    first = finish(*executing(), 2, result, now_ms=NOW_MS)
    assert isinstance(first, Change)
    after = first.approval

    assert finish(after, after.items[0], 2, result, now_ms=NOW_MS) is True
    assert finish(after, after.items[0], 1, result, now_ms=NOW_MS) is False
    assert not after.items[0].is_contradicted


# After a loss or a restored copy, no call runs by an incomplete record.

UNTOUCHED = sorted(set(ItemState) - {ItemState.PENDING, ItemState.AUTHORIZED})
LATE_MS = NOW_MS + HOUR_MS


def of_state(state: ItemState, **more: object) -> Approval:
    return an_approval(an_item().with_(state=state, **more))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ItemState.PENDING, ItemState.WITHDRAWN),
        (ItemState.AUTHORIZED, ItemState.LAPSED),
    ],
)
def test_an_unstarted_call_ends_early(before: ItemState, after: ItemState) -> None:
    approval = of_state(before)
    item = left(end_with_thread(approval, approval.items[0], NOW_MS))
    assert (item.state, item.changed_at_ms) == (after, NOW_MS)
    assert item.revoked is not None
    assert (item.revoked.reason, item.revoked.is_final) == (THREAD_LOST, True)


@pytest.mark.parametrize("state", UNTOUCHED)
def test_a_call_that_began_or_ended_is_left_alone(state: ItemState) -> None:
    approval = of_state(state)
    assert end_with_thread(approval, approval.items[0], NOW_MS) is None
    assert doubt_restored(approval, approval.items[0], NOW_MS) is None


@pytest.mark.parametrize("state", ItemState)
def test_without_reviewers_only_what_waits_for_them_ends(state: ItemState) -> None:
    waiting = an_item().with_(state=ItemState.PENDING)
    other = an_item(1).with_(state=state)
    change = end_without_reviewers(an_approval(waiting, other), NOW_MS)

    assert change is not None
    assert change.resumes
    first, second = change.approval.items
    assert first.state is ItemState.WITHDRAWN
    is_waiting = state is ItemState.PENDING
    assert second.state is (ItemState.WITHDRAWN if is_waiting else state)
    assert end_without_reviewers(change.approval, NOW_MS) is None


def test_without_reviewers_an_overdue_call_is_left_to_the_sweep() -> None:
    assert end_without_reviewers(of_state(ItemState.PENDING), LATE_MS) is None


@pytest.mark.parametrize(
    ("before", "now_ms", "after"),
    [
        # It runs nothing, and is for people.
        (ItemState.AUTHORIZED, NOW_MS, ItemState.IN_DOUBT),
        # It is asked anew, once.
        (ItemState.PENDING, NOW_MS, ItemState.PENDING),
        (ItemState.PENDING, LATE_MS, ItemState.EXPIRED),
    ],
)
def test_a_call_of_an_older_copy_may_have_run(
    before: ItemState, now_ms: int, after: ItemState
) -> None:
    vote = Vote(by=ANA, roles=("support",), action_hash="h", at_ms=1)
    approval = of_state(before, votes=(vote,))

    change = changed(doubt_restored(approval, approval.items[0], now_ms))

    [item] = change.approval.items
    assert (item.state, item.is_restored) == (after, True)
    if after is ItemState.IN_DOUBT:
        assert item.revoked is not None
        assert (item.revoked.reason, item.revoked.is_final) == (RESTORED, False)
    if after is ItemState.PENDING:
        assert (item.votes, change.approval.version) == ((), approval.version + 1)
        assert doubt_restored(change.approval, item, now_ms) is None


TAKEN_BACK = "Somebody who asked for this call took it back, so the call d"
NOT_USED = "The authorization was not used in time, so the call d"
CONVERSATION_GONE = (
    "The saved state of the agent's conversation is gone, so the call did not run."
)
DID_NOT_RUN = "id not run."
GOES_NOT_ON = "oes not go on. What it did before that stays."


def in_state(state: ItemState, verb: Verb = Verb.APPROVE, text: str = "") -> Item:
    decision = DecisionRecord(verb=verb, by=ANA, at_ms=NOW_MS, text=text)
    return an_item().with_(state=state, decision=decision)


def answer(item: Item) -> Answer:
    found = answer_for(item)
    assert found is not None
    return found


def test_there_is_no_answer_while_people_are_asked() -> None:
    assert answer_for(an_item()) is None


@pytest.mark.parametrize(
    "state",
    [
        ItemState.AUTHORIZED,
        ItemState.EXECUTING,
        ItemState.EXECUTED,
        ItemState.FAILED,
        ItemState.IN_DOUBT,
    ],
)
def test_an_approved_call_is_answered_as_approved(state: ItemState) -> None:
    item = in_state(state)
    vote = Vote(by=CHLOE, roles=(), action_hash=item.action_hash, at_ms=1, reason="ok")
    old = vote.with_(action_hash="another", reason="no longer")
    found = answer(item.with_(votes=(vote, old)))
    assert found.type is AnswerKind.APPROVE
    assert found.message == 'Chloé approved this call and wrote: "ok".'


WITHDRAWN = in_state(ItemState.WITHDRAWN, Verb.REJECT)
LAPSED = an_item().with_(state=ItemState.LAPSED)
LOST = Revocation(reason=THREAD_LOST, at_ms=1, is_final=True)
REASON = ' Their reason: "a \\"typo\\"".'


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (WITHDRAWN, f"{TAKEN_BACK}{DID_NOT_RUN}"),
        (WITHDRAWN.with_(fence=1), f"{TAKEN_BACK}{GOES_NOT_ON}"),
        (
            in_state(ItemState.WITHDRAWN, Verb.REJECT, 'a "typo"'),
            f"{TAKEN_BACK}{DID_NOT_RUN}{REASON}",
        ),
        (LAPSED, f"{NOT_USED}{DID_NOT_RUN}"),
        (LAPSED.with_(fence=1), f"{NOT_USED}{GOES_NOT_ON}"),
        (
            LAPSED.with_(revoked=LOST),
            CONVERSATION_GONE,
        ),
    ],
)
def test_whether_it_began_is_told_with_every_end(item: Item, message: str) -> None:
    found = answer(item)
    assert found.message == message
    assert (found.item_id, found.has_started) == (item.id, item.fence > 0)


def test_of_a_call_in_an_older_copy_nobody_says_that_it_did_not_run() -> None:
    why = Revocation(reason=RESTORED, at_ms=1, is_restored=True)
    found = answer(an_item().with_(state=ItemState.EXPIRED, revoked=why))
    assert found.has_started
    assert "did not run" not in found.message
    assert found.message.endswith("look before you ask again.")


def test_a_call_that_nothing_is_known_of_does_not_run_and_may_have() -> None:
    found = unknown_answer("ap.0", "sha256:1", "Its record is gone.")
    assert (found.type, found.item_id) == (AnswerKind.WITHDRAWN, "ap.0")
    assert found.message == (
        "Its record is gone. So it does not run now. Look before you ask again whether "
        "it ran before."
    )


def test_an_authorization_lapses_for_the_reason_that_ended_it() -> None:
    approval = an_approval(in_state(ItemState.AUTHORIZED).with_(lapses_at_ms=100))
    moved_on = end_waiting(approval, Transition.SUPERSEDE, 50)
    overdue = end_overdue(approval, 100)
    assert answer(left(moved_on)).message == (
        "A newer message came, so the call did not run."
    )
    assert answer(left(overdue)).message == f"{NOT_USED}{DID_NOT_RUN}"


# A question that has ended is answered with people's text, or the reason for none.

QUESTIONS = QuestionSet.model_validate(
    {
        "questions": [
            {"question": "Refund or replace?", "default": "refund"},
            {"question": "Which day?"},
        ]
    }
).model_dump(mode="json")
ASKED = an_item(args=QUESTIONS, schema=None).with_(is_question=True)


def test_answers_of_people_are_given_in_order() -> None:
    decision = DecisionRecord(
        verb=Verb.RESPOND, by=ANA, at_ms=NOW_MS, text="Q: … A: …", answers=("a", "b")
    )
    found = answer(ASKED.with_(state=ItemState.ANSWERED, decision=decision))
    assert (found.type, found.answers) == (AnswerKind.RESPOND, ("a", "b"))
    assert found.message == "Q: … A: …"


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (ItemState.EXPIRED, "Nobody answered in time."),
        (
            ItemState.SUPERSEDED,
            "The conversation moved on before anybody answered.",
        ),
        (ItemState.WITHDRAWN, "The question was withdrawn."),
    ],
)
def test_unanswered_questions_have_no_answers(state: ItemState, why: str) -> None:
    found = answer(ASKED.with_(state=state))
    assert (found.type, found.answers) == (AnswerKind(state), None)
    assert found.is_question
    assert found.message.startswith(why)
    assert ("your default: refund" in found.message) == (state == "expired")


@pytest.mark.parametrize("answers", [("refund",), ("refund", "soon", "x")])
def test_no_question_is_answered_unless_all_are(answers: tuple[str, ...]) -> None:
    found = say(an_approval(ASKED), Respond(answers=answers), DAN)
    assert isinstance(found, Invalid)
    assert "2 questions" in found.errors["/0"]


def test_a_question_can_be_answered_while_anybody_was_asked() -> None:
    by_nobody = Requirement(approvals=1, of=(Role(name="support"),))
    approval = an_approval(ASKED)
    assert not is_dead_end(approval, approval.items[0], by_nobody)
    without = approval.with_(principals=())
    assert is_dead_end(without, without.items[0], by_nobody)
    assert not is_dead_end(without, without.items[0], ONE)
