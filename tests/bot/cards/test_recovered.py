"""No text claims that a call did not run if it was started or may have run."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.cards.special_cards import notification
from keyturn.bot.cards.states import status_sentence
from keyturn.bot.listener_context import to_mrkdwn
from keyturn.gateway.approvals.decisions import Stale
from keyturn.gateway.approvals.ending import (
    RESTORED,
    THREAD_LOST,
    doubt_restored,
    end_with_thread,
)
from keyturn.gateway.approvals.events import Event, named_after
from keyturn.gateway.approvals.lifecycle import UNEXECUTED
from keyturn.gateway.approvals.record import DecisionRecord, Item
from keyturn.gateway.protocol.records import ItemState, Tier, Verb
from tests.bot.readable import readable
from tests.bot.samples import ANA, NOW, a_refund, an_approval

ENDS = sorted(UNEXECUTED)
BY_ANA = DecisionRecord(by=ANA, verb=Verb.REJECT, at_ms=NOW)


def old(state: ItemState) -> Item:
    """Return a call that came into this state after its record was restored."""
    waiting = an_approval(a_refund())
    change = doubt_restored(waiting, waiting.items[0], NOW)
    assert change is not None
    return change.approval.items[0].with_(state=state, changed_at_ms=NOW)


def said(item: Item) -> str:
    """Return all texts about the state of a call."""
    approval = an_approval(item)
    event = Event(
        name=named_after(item.state),
        tenant="acme",
        approval=approval.id,
        item=item.id,
        reason=item.revoked.reason if item.revoked else "",
    )
    note = thread_note(event, approval)
    return "\n".join(
        [
            status_sentence(approval, item, now_ms=NOW).text,
            card_fallback(approval),
            "" if note is None else readable(note.blocks) + note.text,
        ]
    )


@pytest.mark.parametrize("decision", [None, BY_ANA])
@pytest.mark.parametrize("state", ENDS)
def test_a_call_that_had_been_started_is_not_said_not_to_have_run(
    state: ItemState, decision: DecisionRecord | None
) -> None:
    item = a_refund(state=state, changed_at_ms=NOW, fence=1, decision=decision)
    click = to_mrkdwn(outcome_text(Stale.of(item), now_ms=NOW))
    waiting = an_approval(item.with_(state=ItemState.PENDING))
    late_ms = waiting.expires_at_ms
    late = status_sentence(waiting, waiting.items[0], now_ms=late_ms).text
    texts = [said(item), click, late]
    # The only end of a call without a decision.
    if state is ItemState.LAPSED:
        unreviewed = an_approval(item.with_(tier=Tier.NOTIFY))
        note = notification(Frame(unreviewed, b"k" * 32, "T0KEYTURN", NOW))
        texts.append(readable(note.blocks) + note.text)

    for told in texts:
        assert "nothing ran" not in told.lower()
        assert "not run" not in told
        assert "never r" not in told
        assert "had started and does not continue" in told


@pytest.mark.parametrize("state", ENDS)
def test_a_restored_call_that_ended_is_not_said_not_to_have_run(
    state: ItemState,
) -> None:
    click = to_mrkdwn(outcome_text(Stale(state=state, is_restored=True), now_ms=NOW))
    told = f"{said(old(state))} {click}".lower()

    assert "nothing ran" not in told
    assert "did not run" not in told
    assert "never r" not in told
    assert "we don't know whether it ran before" in told


def test_a_restored_call_that_was_approved_is_to_be_checked() -> None:
    approved = an_approval(a_refund(state=ItemState.AUTHORIZED))
    change = doubt_restored(approved, approved.items[0], NOW)
    assert change is not None

    told = said(change.approval.items[0])

    assert change.approval.items[0].state is ItemState.IN_DOUBT
    assert "the worker stopped" not in told
    assert "We don't know whether this ran*: its record was restored" in told
    assert RESTORED in told


def test_a_call_whose_thread_is_gone_is_not_said_to_be_withdrawn_by_the_agent() -> None:
    waiting = an_approval(a_refund())
    change = end_with_thread(waiting, waiting.items[0], NOW)
    assert change is not None

    told = said(change.approval.items[0])

    assert "by the agent" not in told
    assert THREAD_LOST in told
