"""Queue the report of a missing or outdated card: one while it waits, one when over."""

from __future__ import annotations

from twokey.bot.cards.undelivered import is_over, needs_people, undelivered
from twokey.bot.delivery.queue_entry import QueuedMessage, QueueEntry
from twokey.bot.web import STILL_THERE
from twokey.gateway.approvals.record import Approval
from twokey.gateway.store.cards import CardStore, CardTrouble
from twokey.gateway.store.keys import Keys


async def queue_report(
    cards: CardStore,
    keys: Keys,
    entry: QueueEntry,
    approval: Approval,
    trouble: CardTrouble,
) -> None:
    """Queue one report that the card is missing or outdated."""
    what = "over" if is_over(approval) else "waiting"
    if what == "waiting" and not needs_people(approval):
        return  # approved: the result will be reported at its end
    # The store records a report only after it is posted. One that is still queued must
    # not be queued again by the next refusal.
    if any(queued.report_key == what for queued in entry.messages):
        return
    if await cards.was_reported(keys, approval.id, what):
        return
    channel, thread_ts = _report_target(entry, approval, trouble.why)
    if channel:
        message = undelivered(
            approval,
            channel=trouble.channel,
            why=trouble.why,
            is_posted=entry.place is not None,
        )
        queued = QueuedMessage(message, "", channel, thread_ts, report_key=what)
        entry.messages.append(queued)


def _report_target(
    entry: QueueEntry, approval: Approval, why: str
) -> tuple[str, str | None]:
    """Return where to report a failed card: in its thread, or to the requester."""
    if entry.place is not None and why in STILL_THERE:
        return entry.place
    if approval.origin is not None:
        return approval.origin.channel, approval.origin.thread_ts
    return (approval.requester.user if approval.requester else ""), None
