"""Tell of calls of one card that fail one after the other in few thread replies.

The first failure is told at once. Those that follow within `HOLD_S` of a reply wait for
the end of that time and share the next one, as do all that happen while a reply waits
for Slack's rate limit. Each event is acknowledged after the reply that tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from twokey.bot.cards.failure_notes import failures_note
from twokey.bot.cards.reminders import with_reviewers
from twokey.bot.delivery.queue_entry import QueuedMessage, QueueEntry
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.states import ItemState

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
