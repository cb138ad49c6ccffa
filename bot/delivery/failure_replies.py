"""Tell of calls of one card that fail one after the other in few thread replies.

The first failure is told at once. Those that follow within `HOLD_S` of a reply wait for
the end of that time and share the next one, as do all that happen while a reply waits
for Slack's rate limit. Each event is acknowledged after the reply that tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from keyturn.bot.cards.history import failures_note
from keyturn.bot.cards.reminders import with_reviewers
from keyturn.bot.cards.undelivered import is_over, needs_people, undelivered
from keyturn.bot.delivery.queue_entry import QueuedMessage, QueueEntry
from keyturn.bot.web import STILL_THERE
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.states import ItemState
from keyturn.gateway.store.cards import CardStore, CardTrouble
from keyturn.gateway.store.keys import Keys


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


HOLD_S = 10.0
"""How long a further failure of a card waits for others, after a reply about one."""

_FAILURES = frozenset({EventName.ITEM_FAILED, EventName.ITEM_IN_DOUBT})


@dataclass(slots=True)
class FailureReplies:
    """When the last reply about failures of each card was posted, by approval id."""

    _told: dict[str, float] = field(default_factory=dict[str, float])

    def told(self, approval: str, now: float) -> None:
        """Take note that a reply about failures was posted."""
        self._told = {
            one: at for one, at in self._told.items() if now - at < HOLD_S
        } | {approval: now}

    def add(
        self,
        entry: QueueEntry,
        event: Event,
        found: Sequence[QueuedMessage],
        approval: Approval,
    ) -> None:
        """Queue the messages for an event; a failure may share the last one."""
        own = found[-1]
        if not (approval.is_batch and len(found) == 1 and event.name in _FAILURES):
            # What happened after a failure is told after it, so that waits no longer.
            entry.messages = [replace(one, not_before=0.0) for one in entry.messages]
            entry.messages += found
            return
        last = entry.messages[-1] if entry.messages else None
        if last is not None and _is_alike(last, own, event):
            entry.messages[-1] = _joined(last, event, approval)
            return
        since = self._told.get(entry.approval)
        due = 0.0 if since is None else since + HOLD_S
        entry.messages.append(replace(own, failures=(event,), not_before=due))


def _is_alike(last: QueuedMessage, own: QueuedMessage, event: Event) -> bool:
    """Return whether the same people are told the same of another call."""
    is_same_kind = bool(last.failures) and last.failures[-1].name is event.name
    return is_same_kind and last.mentioned_roles == own.mentioned_roles


def _joined(last: QueuedMessage, event: Event, approval: Approval) -> QueuedMessage:
    events = (*last.failures, event)
    note = failures_note(events, approval)
    calls = {one.item for one in events}
    asking = [
        item
        for item in approval.items
        if item.id in calls and item.state is ItemState.IN_DOUBT
    ]
    roles = last.mentioned_roles
    if asking and event.name is EventName.ITEM_IN_DOUBT:
        note, roles = with_reviewers(note, approval, asking[0])
    return replace(last, message=note, failures=events, mentioned_roles=roles)
