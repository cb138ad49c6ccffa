"""Calls of one card that fail one after the other share few thread replies."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.history import failures_note
from keyturn.bot.delivery import card_updater
from keyturn.bot.delivery.event_messages import messages_of
from keyturn.bot.delivery.outbox_queue import QueueEntry
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.sandbox.blockkit import validate_message
from tests.bot.readable import readable
from tests.bot.samples import an_approval, an_item, in_state

PLACE = ("C0APPROVALS", "1.0")


def failed(count: int, *, asks: bool = False, error: str = "no funds") -> Approval:
    state = ItemState.IN_DOUBT if asks else ItemState.FAILED
    result = Result(ok=False, summary=error)
    return an_approval(
        *(in_state(an_item({}, index=n), state, result=result) for n in range(count))
    )


def event_of(approval: Approval, index: int, *, asks: bool = False) -> Event:
    return Event(
        name=EventName.ITEM_IN_DOUBT if asks else EventName.ITEM_FAILED,
        tenant="acme",
        approval=approval.id,
        item=approval.items[index].id,
        version=approval.version,
        seq=f"{index}-0",
    )


def add(entry: QueueEntry, approval: Approval, event: Event) -> None:
    card_updater.queue_messages(
        entry, event, messages_of(event, approval, PLACE, {}), approval
    )


def texts(entry: QueueEntry) -> list[str]:
    return [readable(one.message.blocks) for one in entry.messages]


@pytest.mark.parametrize("asks", [False, True])
def test_failures_that_wait_to_be_told_share_one_reply(*, asks: bool) -> None:
    approval, entry = failed(9, asks=asks), QueueEntry("ap", "ap")

    for index in (0, 1, 2, 7):
        add(entry, approval, event_of(approval, index, asks=asks))

    (text,) = texts(entry)
    assert "calls 1-3, 8" in text
    assert ("Should they run again" in text) is asks
    assert [f"| {n}: no funds" in text for n in (1, 2, 3, 4, 8)] == [
        True,
        True,
        True,
        False,
        True,
    ]
    assert entry.messages[0].seqs == ["0-0", "1-0", "2-0", "7-0"]
    assert text.count("<!subteam^S0SUPPORT>") == asks


def test_what_happens_after_a_failure_is_told_after_it() -> None:
    approval, entry = failed(3), QueueEntry("ap", "ap")
    add(entry, approval, event_of(approval, 0))

    expired = event_of(approval, 1).with_(name=EventName.ITEM_LAPSED)
    add(entry, approval, expired)
    add(entry, approval, event_of(approval, 2))

    assert [one.seqs for one in entry.messages] == [["0-0"], ["1-0"], ["2-0"]]


def test_many_long_errors_fit_into_one_reply() -> None:
    approval = failed(99, error="x" * 5_000)

    note = failures_note([event_of(approval, n) for n in range(99)], approval)

    assert validate_message([*note.blocks], note.text) == []
    assert "❌ *Failed:* calls 1-99" in readable(note.blocks)
    assert "… and 89 more" in readable(note.blocks)
    assert note.text == "99 calls failed or may have run."
