"""A question that has ended is answered with what people said, or why nobody did."""

from __future__ import annotations

import pytest

from tests.approvals.builders import ANA, NOW_MS, an_item
from twokey.gateway.approvals.record import DecisionRecord, Item
from twokey.gateway.approvals.resume_value import answer_for
from twokey.gateway.protocol.questions import QuestionSet
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.protocol.wire import Answer, AnswerKind

ASKED = QuestionSet.model_validate(
    {
        "questions": [
            {"question": "Refund or replace?", "default": "refund"},
            {"question": "Which day?"},
        ]
    }
).model_dump(mode="json")


def ended(state: ItemState, decision: DecisionRecord | None = None) -> Item:
    item = an_item(args=ASKED, schema=None).with_(
        is_question=True, state=state, decision=decision
    )
    assert item.is_question
    return item


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


def test_questions_that_people_skip_are_rejected_with_their_reason() -> None:
    decision = DecisionRecord(verb=Verb.REJECT, by=ANA, at_ms=NOW_MS, text="Not now.")

    found = answer(ended(ItemState.REJECTED, decision))

    assert (found.type, found.message) == (AnswerKind.REJECT, "Not now.")


def test_questions_that_expire_are_answered_with_their_defaults() -> None:
    found = answer(ended(ItemState.EXPIRED))

    assert (found.type, found.answers) == (AnswerKind.EXPIRED, ("refund", ""))
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

    assert (found.type, found.answers, found.message) == (kind, (), why)
