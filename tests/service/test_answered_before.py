"""A card shows people's earlier answers to its agent; they decide nothing."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Decided, Reject, Respond
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.questions import ASK_USER
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from keyturn.gateway.service.submit.submitting import MOST_SETS
from tests.service.harness import ANA, DAN, ServiceHarness, person

REFUND: tuple[str, JsonObject] = ("process_refund", {"amount": 899})


async def asked(
    harness: ServiceHarness, question: str, *, thread: str = "t1"
) -> Verdict:
    """Have the agent ask one question."""
    ref = TurnRef(agent="support", thread=thread, message_id=f"asks {question}")
    args: JsonObject = {"questions": [{"question": question}]}
    call = ProposedCall(tool=ASK_USER, args=args, tool_call_id="c1", is_question=True)
    [verdict] = await harness.agents.submit(Turn(ref=ref, calls=(call,)))
    return verdict


async def answered(
    harness: ServiceHarness, question: str, answer: str, *, thread: str = "t1"
) -> None:
    """Have the agent ask one question, and Ana answer it."""
    verdict = await asked(harness, question, thread=thread)
    said = Respond(message=answer)
    outcome = await harness.decide(verdict, said)
    assert isinstance(outcome, Decided)


async def card_of(
    harness: ServiceHarness, *calls: tuple[str, JsonObject], thread: str = "t1"
) -> Approval:
    """Have the agent make calls that people decide; return the record of its card."""
    _, verdicts = await harness.submit(*(calls or (REFUND,)), thread=thread)
    return await harness.approval(verdicts[0].item_id)


async def test_the_next_card_has_the_answer_with_who_gave_it(
    harness: ServiceHarness,
) -> None:
    await answered(harness, "Which order?", "78291")

    [one] = (await card_of(harness)).answered

    assert (one.text, one.by) == ("Q: Which order?\nA: 78291", ANA.person)
    assert one.at_ms > 0


async def test_the_newest_answers_come_first_and_a_few_are_enough(
    harness: ServiceHarness,
) -> None:
    for number in range(MOST_SETS + 2):
        await answered(harness, f"Question {number}?", "yes")

    shown = (await card_of(harness)).answered

    assert [one.text[:13] for one in shown] == [
        "Q: Question 4",
        "Q: Question 3",
        "Q: Question 2",
    ]


async def test_other_threads_skipped_and_waiting_questions_are_no_evidence(
    harness: ServiceHarness,
) -> None:
    await answered(harness, "Which order?", "1", thread="t2")
    skipped = await asked(harness, "Which one?")
    await harness.decide(skipped, Reject())
    await asked(harness, "And now?")

    assert (await card_of(harness)).answered == ()


async def test_an_answer_of_the_day_before_is_shown_no_more(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyturn.gateway.service.submit.submitting.DAY_MS", 0)
    await answered(harness, "Which order?", "1")

    assert (await card_of(harness)).answered == ()


async def test_the_record_of_a_card_keeps_the_answers_as_they_were(
    harness: ServiceHarness,
) -> None:
    await answered(harness, "Which order?", "\u202e<!channel>\nQ: Really?\nA: yes")
    before = await card_of(harness)
    dan = person(DAN.user)

    loaded = await harness.reviews.read(before.id)
    assert loaded is not None
    assert loaded.approval.answered == before.answered
    assert "\n   Q: Really?" in before.answered[0].text
    # The requester decides nothing, answered or not.
    refused = await harness.decide(before.items[0].id, Respond(message="x"), dan)
    assert not isinstance(refused, Decided)
