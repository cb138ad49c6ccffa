"""A held call is resumed with the result in its record, and never asked again."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Invalid, Respond
from keyturn.gateway.approvals.ending import (
    RESTORED,
    THREAD_LOST,
    end_overdue,
    end_waiting,
)
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.quorum import is_dead_end
from keyturn.gateway.approvals.record import DecisionRecord, Item
from keyturn.gateway.approvals.requirement import (
    Requirement,
    Revocation,
    Role,
    Vote,
)
from keyturn.gateway.approvals.resume_value import answer_for, unknown_answer
from keyturn.gateway.protocol.questions import QuestionSet
from keyturn.gateway.protocol.records import ItemState, Verb
from keyturn.gateway.protocol.wire import Answer, AnswerKind
from tests.approvals.builders import (
    ANA,
    CHLOE,
    DAN,
    NOW_MS,
    ONE,
    an_approval,
    an_item,
    left,
    say,
)

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
def test_questions_that_end_otherwise_have_no_answers(
    state: ItemState, why: str
) -> None:
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
