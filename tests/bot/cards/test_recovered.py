"""No text claims that a call did not run if it was started or may have run."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.cards.states import card_fallback, status_sentence
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
from tests.bot.samples import ANA, LATER, NOW, a_refund, an_approval, frame

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
