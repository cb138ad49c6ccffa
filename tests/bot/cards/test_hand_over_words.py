"""No text claims more than is known about a call, and each is a sentence."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import get_args

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.cards import channel_messages, reminders
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.channel_messages import (
    FREEZE_EVENTS,
    flood_message,
    freeze_message,
)
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.reminders import waits_again
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.cards.special_cards import many_ran, plain_card, report_line
from keyturn.bot.cards.states import STATE_NAMES, card_fallback, status_sentence
from keyturn.bot.listener_context import to_mrkdwn
from keyturn.bot.modals.details import pages
from keyturn.gateway.approvals.changes import reason_of_end
from keyturn.gateway.approvals.decisions import Stale
from keyturn.gateway.approvals.ending import (
    LEFT,
    RESTORED,
    THREAD_LOST,
    doubt_restored,
    end_with_thread,
)
from keyturn.gateway.approvals.events import (
    HANDED_TO,
    Event,
    EventName,
    approval_event,
    named_after,
)
from keyturn.gateway.approvals.lifecycle import UNEXECUTED
from keyturn.gateway.approvals.record import Approval, DecisionRecord, Item
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.protocol.records import (
    Finding,
    ItemState,
    NotTaken,
    Result,
    Tier,
    Verb,
)
from keyturn.gateway.service.run.approval_readings import view_of
from keyturn.gateway.service.run.claiming import unclaimable
from keyturn.gateway.trust.audit_proofs import Story
from tests.bot.cards.test_card_snapshots import CARDS, EDITED
from tests.bot.cards.test_notification import MESSAGES
from tests.bot.cards.test_notification import shown as notified
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    LATER,
    NOW,
    TEAM,
    a_refund,
    an_approval,
    an_item,
    frame,
    handed,
    in_state,
)

S = ItemState
HERE = {S.EXECUTING, S.EXECUTED, S.FAILED, S.IN_DOUBT}
"""States that a call of another program never has."""

HONEST = re.compile(
    r"runs (it|this|its calls) by itself|cannot see what runs"
    r"|reports(:| that) it (ran|failed)|program reports"
)
CLAIM = re.compile(
    r"\bran\b|\bto run\b|\brunning\b|\bdone\b|\bexecut|\bfailed\b", re.IGNORECASE
)
UNKNOWN = re.compile(r"whether it ran", re.IGNORECASE)


def calls() -> Iterator[Item]:
    """Yield a call of another program at each of its possible ends."""
    reports = (None, Result(ok=True, summary="x"), Result(ok=False, summary="x"))
    for item, problem in itertools.product((a_refund(), EDITED), get_args(NotTaken)):
        if problem:
            yield handed(item, S.NOT_TAKEN, problem=problem, detail="x")
    for item, report in itertools.product((a_refund(), EDITED), reports):
        yield handed(item, S.HANDED_OVER, reported=report)
    others = sorted({*S} - HERE - {S.HANDED_OVER, S.NOT_TAKEN, S.PENDING})
    for item, state in itertools.product((a_refund(), EDITED), others):
        one = handed(item, state)
        yield one
        yield one.with_(fence=1)
        for reason in (LEFT, RESTORED):
            why = reason_of_end(one, reason, NOW).with_(is_final=True)
            yield one.with_(fence=1, revoked=why)
    yield handed(a_refund(), S.PENDING)


CALLS = [*calls()]


def event_of(item: Item) -> Event:
    is_open = item.state is S.PENDING
    name = EventName.APPROVAL_OPENED if is_open else named_after(item.state)
    return approval_event(an_approval(item), name, item)


def told(item: Item) -> Iterator[str]:
    """Yield all texts about a call: for people, for its connector and for the audit."""
    approval = an_approval(item)
    event = event_of(item)
    shown = frame(approval)
    yield card(shown).text
    yield str(card(shown).blocks)
    yield str([part.title for page in pages(approval, item) for part in page])
    note = thread_note(event, approval)
    yield str(note.blocks) if note else ""
    yield outcome_text(Stale(item=item)).text
    yield STATE_NAMES[item.state]
    answer = answer_for(item)
    yield answer.message if answer else ""
    yield getattr(unclaimable(item), "reason", "")
    yield str(Story("ap_1", [event]).row["ran"]).replace("True", "ran")
    yield event.name
    view = view_of(approval).calls[0]
    yield "ran" if view.ok is not None else ""


def claims(item: Item) -> list[str]:
    """Return what the texts about a call claim of its run."""
    texts = (UNKNOWN.sub("", HONEST.sub("", text)) for text in told(item))
    return [found[0] for text in texts for found in CLAIM.finditer(text)]


@pytest.mark.parametrize("item", CALLS, ids=lambda one: f"{one.state}-{one.fence}")
def test_no_text_says_that_keyturn_ran_it(item: Item) -> None:
    assert claims(item) == []


@pytest.mark.parametrize("state", sorted(HERE))
def test_the_texts_of_a_call_that_runs_here_would_be_found(state: ItemState) -> None:
    assert claims(in_state(a_refund(), state, result=Result(ok=state is S.EXECUTED)))


def test_every_event_names_the_class() -> None:
    for item in CALLS:
        event = event_of(item)
        assert event.data[HANDED_TO] == item.handed_to
        assert view_of(an_approval(item)).calls[0].handed_to == item.handed_to


def test_a_question_that_is_gone_may_have_been_answered_elsewhere() -> None:
    gone = handed(a_refund(), S.WITHDRAWN).with_(decision=None)
    [said] = {card(frame(an_approval(gone))).text}
    assert "Claude Code no longer asks. It was not handed over." in said
    assert "by the agent" not in said


BY_ANA = DecisionRecord(by=ANA, verb=Verb.REJECT, at_ms=NOW)


def restored(state: ItemState) -> Item:
    """Return a call in this state whose record was restored from an older copy."""
    approval = an_approval(a_refund(state=state))
    change = doubt_restored(approval, approval.items[0], NOW)
    assert change is not None
    return change.approval.items[0]


def said(item: Item) -> str:
    """Return all texts about the state of a call."""
    approval = an_approval(item)
    reason = item.revoked.reason if item.revoked else ""
    event = Event(
        name=named_after(item.state), tenant="acme", item=item.id, reason=reason
    )
    note = thread_note(event.with_(approval=approval.id), approval)
    texts = [status_sentence(approval, item, now_ms=NOW).text, card_fallback(approval)]
    texts += [readable(note.blocks, note.text)] if note else []
    if not item.is_pending and item.state in UNEXECUTED:
        texts.append(to_mrkdwn(outcome_text(Stale(item=item))))
    return "\n".join(texts).lower()


@pytest.mark.parametrize("decision", [None, BY_ANA])
@pytest.mark.parametrize("state", sorted(UNEXECUTED))
def test_a_call_that_had_been_started_is_not_said_not_to_have_run(
    state: ItemState, decision: DecisionRecord | None
) -> None:
    item = a_refund(state=state, changed_at_ms=NOW, fence=1, decision=decision)
    waiting = item.with_(state=ItemState.PENDING)
    late = status_sentence(an_approval(waiting), waiting, now_ms=LATER).text.lower()
    texts = [said(item), late]
    # The only end of a call without a decision.
    if state is ItemState.LAPSED:
        note = card(frame(an_approval(item.with_(tier=Tier.NOTIFY))))
        texts.append(readable(note.blocks, note.text).lower())

    for told in texts:
        assert not [one for one in ("nothing ran", "not run", "never r") if one in told]
        assert "had started and does not continue" in told


@pytest.mark.parametrize("state", sorted(UNEXECUTED))
def test_a_restored_call_may_have_run(state: ItemState) -> None:
    old = restored(ItemState.PENDING).with_(state=state, changed_at_ms=NOW)

    told = said(old)

    assert not [one for one in ("nothing ran", "not run", "never r") if one in told]
    assert "we don't know whether it ran before" in told


def test_no_restored_call_that_waits_is_said_to_have_been_approved() -> None:
    approval = an_approval(restored(ItemState.PENDING))
    messages = card(frame(approval)), waits_again(approval, RESTORED).message
    for message in messages:
        told = readable(message.blocks, message.text)

        assert "taken back" not in told
        assert "before the call ran" not in told
        assert "estored from an older copy" in told.replace(RESTORED, "")

    assert "taken back" not in str(pages(approval, approval.items[0]))


def test_a_restored_call_that_was_approved_is_to_be_checked() -> None:
    item = restored(ItemState.AUTHORIZED)
    told = said(item)

    assert item.state is ItemState.IN_DOUBT
    assert "the worker stopped" not in told
    assert "we don't know whether this ran*: its record was restored" in told
    assert RESTORED.lower() in told


def test_a_call_whose_thread_is_gone_is_not_said_to_be_withdrawn_by_the_agent() -> None:
    waiting = an_approval(a_refund())
    change = end_with_thread(waiting, waiting.items[0], NOW)
    assert change is not None

    told = said(change.approval.items[0])

    assert "by the agent" not in told
    assert THREAD_LOST.lower() in told


SENTENCE = re.compile(r"([\w ,.-]{1,80}: )?(?=[A-Z0-9])[^\n]{6,240}[.]")
NO_PERSONS_WORD = re.compile(
    r"ap_|nt_|sha256|<|>|`|\b(?:item|approval|run|record)\.[a-z]|\bcall \d+:|_ms\b"
    r"|T0KEYTURN|U0|C0|\b[A-Z]{2,}_",
)
STATES = [an_item(index=index, state=s) for index, s in enumerate(ItemState)]
APPROVALS = (
    *CARDS.values(),
    an_approval(*STATES),
    *(an_approval(a_refund(state=one)) for one in ItemState),
)


def messages_about(approval: Approval) -> list[Message]:
    """Return each message about an approval."""
    notes = [
        thread_note(
            Event(
                name=name,
                tenant="acme",
                approval=approval.id,
                item=approval.items[0].id,
                actor=f"{TEAM}/U0ANA",
                reason=reason,
            ),
            approval,
        )
        for name in EventName
        for reason in ("", *Finding)
    ]
    return [
        card(frame(approval)),
        plain_card(frame(approval)),
        reminders.reminder(approval).message,
        reminders.escalation(approval, {"C0A": "", "C0B": "not_in_channel"}).message,
        reminders.channel_escalation(approval, "C0APPROVALS"),
        *(note for note in notes if note),
    ]


def other_messages() -> list[Message]:
    """Return each message that is about no card."""
    event = Event(
        name=EventName.ITEM_AUTHORIZED,
        tenant="acme",
        approval="ap_default_1",
        agent="a",
        tool="pay",
        actor="T/U0ANA",
    )
    return [
        *map(notified, MESSAGES.values()),
        *(plain_card(frame(one)) for one in MESSAGES.values()),
        *(
            freeze_message(event.with_(name=name, tool=""))
            for name in FREEZE_EVENTS - {EventName.AGENT_FLOODS}
        ),
        flood_message(event, {"pay": 2}, 1, key=b"k" * 32, team="T"),
        many_ran([event, event]),
        report_line(event.with_(name=EventName.APPROVAL_REPORTED)),
        channel_messages.agent_answer("Done."),
        channel_messages.no_answer(),
        channel_messages.run_failed(),
        channel_messages.corrupt_record("ap_default_1"),
    ]


def test_every_fallback_is_a_sentence_without_machine_words() -> None:
    about = [message for one in APPROVALS for message in messages_about(one)]
    texts = {message.text for message in (*about, *other_messages())}

    assert len(texts) > len(ItemState)
    for text in texts:
        assert SENTENCE.fullmatch(text), text
        assert not NO_PERSONS_WORD.search(text.replace("process_refund", "x")), text
