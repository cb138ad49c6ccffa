"""A question that has ended is answered with people's text, or the reason for none."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import Invalid, Respond
from keyturn.gateway.approvals.quorum import is_dead_end
from keyturn.gateway.approvals.record import DecisionRecord, Item
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.protocol.questions import QuestionSet
from keyturn.gateway.protocol.records import ItemState, Verb
from keyturn.gateway.protocol.wire import Answer, AnswerKind
from tests.approvals.builders import (
    ANA,
    DAN,
    NOW_MS,
    ONE,
    an_approval,
    an_item,
    click_on,
    reviewer,
)

ASKED = QuestionSet.model_validate(
    {
        "questions": [
            {"question": "Refund or replace?", "default": "refund"},
            {"question": "Which day?"},
        ]
    }
).model_dump(mode="json")


def asked() -> Item:
    return an_item(args=ASKED, schema=None).with_(is_question=True)


def ended(state: ItemState, decision: DecisionRecord | None = None) -> Item:
    return asked().with_(state=state, decision=decision)


def answer(item: Item) -> Answer:
    found = answer_for(item)
    assert found is not None
    return found


def test_answers_of_people_are_given_in_order() -> None:
    decision = DecisionRecord(
        verb=Verb.RESPOND, by=ANA, at_ms=NOW_MS, text="Q: … A: …", answers=("a", "b")
    )

    found = answer(ended(ItemState.ANSWERED, decision))

    assert (found.type, found.answers) == (AnswerKind.RESPOND, ("a", "b"))
    assert found.message == "Q: … A: …"


def test_questions_that_expire_name_their_defaults_and_have_no_answers() -> None:
    found = answer(ended(ItemState.EXPIRED))

    assert (found.type, found.answers) == (AnswerKind.EXPIRED, None)
    assert found.is_question
    assert found.message.startswith("Nobody answered in time.")
    assert "your default: refund" in found.message


@pytest.mark.parametrize(
    ("state", "kind", "why"),
    [
        (
            ItemState.SUPERSEDED,
            AnswerKind.SUPERSEDED,
            "The conversation moved on before anybody answered.",
        ),
        (
            ItemState.WITHDRAWN,
            AnswerKind.WITHDRAWN,
            "The question was withdrawn.",
        ),
    ],
)
def test_questions_that_end_otherwise_have_no_answers(
    state: ItemState, kind: AnswerKind, why: str
) -> None:
    found = answer(ended(state))

    assert (found.type, found.answers, found.message) == (kind, None, why)
    assert found.is_question


@pytest.mark.parametrize(
    ("answers", "place"), [(("refund",), "/0"), (("refund", "soon", "x"), "/0")]
)
def test_no_question_is_answered_unless_all_are(
    answers: tuple[str, ...], place: str
) -> None:
    approval = an_approval(asked())
    said = Respond(answers=answers)

    found = decide(approval, click_on(approval), said, reviewer(DAN), now_ms=NOW_MS)

    assert isinstance(found, Invalid)
    assert "2 questions" in found.errors[place]


def test_a_question_can_be_answered_while_anybody_was_asked() -> None:
    by_nobody = Requirement(approvals=1, of=(Role(name="support"),))
    approval = an_approval(asked())

    assert not is_dead_end(approval, approval.items[0], by_nobody)
    without = approval.with_(principals=())
    assert is_dead_end(without, without.items[0], by_nobody)
    assert not is_dead_end(without, without.items[0], ONE)
