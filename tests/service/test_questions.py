"""The gateway takes questions from the agent that people speak to, and no others."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decided,
    Forbidden,
    Reject,
    Respond,
    Stale,
    Unknown,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval, Inquiry
from keyturn.gateway.protocol.questions import ASK_USER, NOT_OUTERMOST
from keyturn.gateway.protocol.records import Person, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.submit.submitting import MOST_SETS
from keyturn.gateway.store.runs.threads import ThreadFacts
from tests.service.harness import ANA, BEN, DAN, EVE, ServiceHarness, person

ARGS: JsonObject = {"questions": [{"question": "Which one?"}]}


async def ask(
    harness: ServiceHarness,
    args: JsonObject = ARGS,
    *,
    nested_in: RunRef | None = None,
    facts: ThreadFacts | None = None,
) -> Verdict:
    ref = TurnRef(agent="support", thread="t1", message_id="m1", nested_in=nested_in)
    known = facts or ThreadFacts(requester=DAN)
    await harness.store.threads.change(
        harness.keys, "support", "t1", lambda _: known, why="aside"
    )
    call = ProposedCall(tool=ASK_USER, args=args, tool_call_id="c1", is_question=True)
    [verdict] = await harness.agents.submit(Turn(ref=ref, calls=(call,)))
    return verdict


async def test_an_agent_inside_a_tool_asks_nobody(harness: ServiceHarness) -> None:
    lead = RunRef(agent="lead", thread="t0")

    verdict = await ask(harness, nested_in=lead)

    assert (verdict.kind, verdict.reason) == (VerdictKind.DENY, NOT_OUTERMOST)


@pytest.mark.parametrize("args", [{}, {"questions": []}, {"questions": "?"}])
async def test_what_is_no_set_of_questions_is_refused(
    harness: ServiceHarness, args: JsonObject
) -> None:
    verdict = await ask(harness, args)

    assert verdict.kind is VerdictKind.DENY
    assert "no question was asked" in verdict.reason


async def test_a_forgotten_requester_needs_no_second(harness: ServiceHarness) -> None:
    verdict = await ask(harness, facts=ThreadFacts(is_partial=True))
    click = await harness.click(verdict)

    assert isinstance(
        await harness.reviews.decide(click, Respond(message="it"), EVE), Forbidden
    )
    assert isinstance(
        await harness.reviews.decide(click, Respond(message="this"), ANA), Decided
    )


async def test_the_requester_answers_without_reviewers(harness: ServiceHarness) -> None:
    harness.put_policy(
        of="version: 1\ndefaults: {tier: deny, expires_in: 1h, channel: C0A}\n"
    )
    verdict = await ask(harness)
    click = await harness.click(verdict)

    refused = await harness.reviews.decide(click, Respond(message="it"), ANA)
    dan = person("U0DAN")
    answered = await harness.reviews.decide(click, Respond(message="this"), dan)

    assert isinstance(refused, Forbidden)
    assert "Only the requester can answer" in refused.reason
    assert isinstance(answered, Decided)


# A card shows people's earlier answers to its agent; they decide nothing.

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


async def test_the_newest_few_answers_come_first(harness: ServiceHarness) -> None:
    for number in range(MOST_SETS + 2):
        await answered(harness, f"Question {number}?", "yes")

    shown = (await card_of(harness)).answered

    assert [one.text[:13] for one in shown] == [
        "Q: Question 4",
        "Q: Question 3",
        "Q: Question 2",
    ]


async def test_other_threads_answers_are_no_evidence(harness: ServiceHarness) -> None:
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


async def test_a_card_keeps_answers_as_they_were(harness: ServiceHarness) -> None:
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


# Questions to requesters are stored and audited, and delay no decision.

ROUNDS = 20
DAN_AGAIN = Person(team="T0", user="U0DAN")


async def test_a_question_and_its_reply_are_read_back(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    service = harness.reviews

    await service.change_own(
        click.approval, waiting_changes.ask, None, ANA, "Was it broken?"
    )
    await service.change_own(
        click.approval, waiting_changes.reply, DAN_AGAIN, "Ja, völlig ☕", "17.1"
    )

    said = (await harness.approval(click.approval + ".0")).inquiries
    assert [(one.by.user, one.text, one.reply_ts) for one in said] == [
        ("U0ANA", "Was it broken?", ""),
        ("U0DAN", "Ja, völlig ☕", "17.1"),
    ]
    assert said[1].by.name == DAN.name
    entries = [one for one in await harness.audited() if one.reason]
    assert [(one.name, one.actor, one.reason) for one in entries] == [
        (EventName.APPROVAL_ASKED, "T0/U0ANA", "Was it broken?"),
        (EventName.APPROVAL_REPLIED, "T0/U0DAN", "Ja, völlig ☕"),
    ]


async def test_another_tenant_asks_and_learns_nothing(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    other = ReviewService(harness.store, lambda: harness.policy, tenant="other")

    asked = await other.change_own(
        click.approval, waiting_changes.ask, None, ANA, "Why?"
    )
    replied = await other.change_own(
        click.approval, waiting_changes.reply, DAN, "So", "17.1"
    )
    unknown = await harness.reviews.change_own(
        "ap_none", waiting_changes.ask, None, ANA, "Why?"
    )

    assert [asked, replied, unknown] == [Unknown()] * 3
    assert (await harness.approval(click.approval + ".0")).rev == 1


async def test_questions_during_a_decision_are_kept(harness: ServiceHarness) -> None:
    service = harness.reviews
    for n in range(ROUNDS):
        click, _ = await harness.refund(thread=f"t{n}")

        *asked, outcome = await asyncio.gather(
            service.change_own(
                click.approval, waiting_changes.ask, None, ANA, "Ana asks"
            ),
            service.change_own(
                click.approval, waiting_changes.ask, None, BEN, "Ben asks"
            ),
            harness.reviews.decide(click, Approve(), BEN),
        )

        assert outcome.kind == "decided"
        assert all(isinstance(one, Change | Stale) for one in asked)
        kept = (await harness.approval(click.approval + ".0")).inquiries
        assert len(kept) == sum(isinstance(one, Change) for one in asked)
        entries = [one.name for one in await harness.audited()]
        assert entries.count(EventName.ITEM_AUTHORIZED) == n + 1


async def test_a_repeated_reply_is_kept_once(harness: ServiceHarness) -> None:
    service = harness.reviews
    click, _ = await harness.refund()
    await service.change_own(click.approval, waiting_changes.ask, None, ANA, "Why?")

    found = await asyncio.gather(
        *(
            service.change_own(click.approval, waiting_changes.reply, DAN, "So", "17.1")
            for _ in range(8)
        ),
        service.change_own(click.approval, waiting_changes.reply, DAN, "And", "17.2"),
    )

    said = (await harness.approval(click.approval + ".0")).inquiries
    assert sorted(one.reply_ts for one in said) == ["", "17.1", "17.2"]
    assert sum(isinstance(one, Change) for one in found) == 2
    assert sum(isinstance(one, Inquiry) for one in found) == 7
    names = [one.name for one in await harness.audited()]
    assert names.count(EventName.APPROVAL_REPLIED) == 2


# A person's message starts the agent once, and all speakers are remembered.

ASKERS = [Person(team="T1", user=f"U{number}") for number in range(6)]


async def speak(harness: ServiceHarness, by: Person, once: str = "") -> bool:
    return await harness.reviews.ask_agent(
        "support", "t1", "refund it", requester=by, origin=None, message_key=once
    )


async def test_a_repeated_message_starts_an_agent_once(harness: ServiceHarness) -> None:
    kept = await asyncio.gather(
        *(speak(harness, ASKERS[0], "event:1") for _ in range(4))
    )

    assert sorted(kept) == [False, False, False, True]
    assert await harness.jobs() == 1
    # The same words said once more are another message.
    assert await speak(harness, ASKERS[0])
    assert await harness.jobs() == 2


async def test_a_late_message_changes_no_requester(harness: ServiceHarness) -> None:
    one, two, *_ = ASKERS
    await speak(harness, one, "event:1")
    await speak(harness, two, "event:2")
    await speak(harness, one, "event:1")

    facts = await harness.store.threads.facts(harness.keys, "support", "t1")
    assert facts.requester == two
    assert facts.principals == (one,)


async def test_a_concurrent_requester_is_a_principal(harness: ServiceHarness) -> None:
    """A forgotten speaker could approve their own request."""
    await asyncio.gather(*(speak(harness, each) for each in ASKERS))

    facts = await harness.store.threads.facts(harness.keys, "support", "t1")
    assert facts.requester
    spoke = {person.user for person in (*facts.principals, facts.requester)}
    assert spoke == {person.user for person in ASKERS}
