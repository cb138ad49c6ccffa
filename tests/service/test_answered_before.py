"""A card shows people's earlier answers to its agent; they decide nothing."""

from __future__ import annotations

from typing import cast

import pytest

from keyturn.gateway.approvals.decisions import Decided, Reject, Respond
from keyturn.gateway.approvals.precedents import DAY_MS
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.questions import ASK_USER
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from keyturn.gateway.service.submit.submitting import MOST_SETS
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, DAN, ServiceHarness, person

RUN = RunRef(agent="support", thread="t1")
REFUND: tuple[str, JsonObject] = ("process_refund", {"amount": 899})


@pytest.fixture
def service(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


async def asked(
    service: ServiceHarness, question: str, *, thread: str = "t1"
) -> Verdict:
    """Have the agent ask one question."""
    ref = TurnRef(agent="support", thread=thread, message_id=f"asks {question}")
    args: JsonObject = {"questions": [{"question": question}]}
    call = ProposedCall(tool=ASK_USER, args=args, tool_call_id="c1", is_question=True)
    [verdict] = await service.agents.submit(Turn(ref=ref, calls=(call,)))
    return verdict


async def answered(
    service: ServiceHarness, question: str, answer: str, *, thread: str = "t1"
) -> None:
    """Have the agent ask one question, and Ana answer it."""
    verdict = await asked(service, question, thread=thread)
    said = Respond(message=answer)
    outcome = await service.reviews.decide(await service.click(verdict), said, ANA)
    assert isinstance(outcome, Decided)


async def card_of(
    service: ServiceHarness, *calls: tuple[str, JsonObject], thread: str = "t1"
) -> Approval:
    """Have the agent make calls that people decide; return the record of its card."""
    _, verdicts = await service.submit(*(calls or (REFUND,)), thread=thread)
    return await service.approval(verdicts[0].item_id)


async def test_the_next_card_has_the_answer_with_who_gave_it(
    service: ServiceHarness,
) -> None:
    await answered(service, "Which order?", "78291")

    [one] = (await card_of(service)).answered

    assert (one.text, one.by) == ("Q: Which order?\nA: 78291", ANA.person)
    assert one.at_ms > 0


async def test_the_newest_answers_come_first_and_a_few_are_enough(
    service: ServiceHarness,
) -> None:
    for number in range(MOST_SETS + 2):
        await answered(service, f"Question {number}?", "yes")

    shown = (await card_of(service)).answered

    assert [one.text[:13] for one in shown] == [
        "Q: Question 4",
        "Q: Question 3",
        "Q: Question 2",
    ]


async def test_a_run_lists_its_newest_answers_and_nothing_else_for_a_day(
    service: ServiceHarness,
) -> None:
    keys, store = service.store.keys_of_tenant("default"), service.store.approvals
    rejected = await asked(service, "Which one?")
    await service.reviews.decide(await service.click(rejected), Reject(), ANA)
    assert await store.answered_of_run(keys, RUN) == []

    for number in range(12):
        await answered(service, f"Question {number}?", "yes")

    newest = await store.of_run(keys, RUN, newest=10)
    assert await store.answered_of_run(keys, RUN) == newest
    left = await service.store.conn.command("PTTL", keys.answered(RUN))
    assert 0 < cast("int", left) <= DAY_MS


async def test_other_threads_skipped_and_waiting_questions_are_no_evidence(
    service: ServiceHarness,
) -> None:
    await answered(service, "Which order?", "1", thread="t2")
    skipped = await asked(service, "Which one?")
    await service.reviews.decide(await service.click(skipped), Reject(), ANA)
    await asked(service, "And now?")

    assert (await card_of(service)).answered == ()


async def test_a_question_shows_no_earlier_answers(service: ServiceHarness) -> None:
    await answered(service, "Which order?", "1")

    verdict = await asked(service, "Which amount?")

    assert (await service.approval(verdict.item_id)).answered == ()


async def test_an_answer_of_the_day_before_is_shown_no_more(
    service: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyturn.gateway.service.submit.submitting.DAY_MS", 0)
    await answered(service, "Which order?", "1")

    assert (await card_of(service)).answered == ()


async def test_the_record_of_a_card_keeps_the_answers_as_they_were(
    service: ServiceHarness,
) -> None:
    await answered(service, "Which order?", "\u202e<!channel>\nQ: Really?\nA: yes")
    before = await card_of(service)
    dan = person(DAN.user)

    loaded = await service.reviews.read(before.id)
    assert loaded is not None
    assert loaded.approval.answered == before.answered
    assert "\n   Q: Really?" in before.answered[0].text
    # The requester decides nothing, answered or not.
    click = await service.click_on(before.items[0].id)
    refused = await service.reviews.decide(click, Respond(message="x"), dan)
    assert not isinstance(refused, Decided)
