"""Build approvals that open authorized, by policy or by a standing approval.

Pure. Their agent does not wait: the calls may start at once, lapse where it does not
come to them, and go to nobody when they fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twokey.gateway.approvals import timing
from twokey.gateway.approvals.decision_context import listed
from twokey.gateway.approvals.events import (
    BY_POLICY,
    Event,
    EventName,
    approval_event,
)
from twokey.gateway.approvals.lifecycle import Transition, advance
from twokey.gateway.approvals.record import Approval, Item, Waiting
from twokey.gateway.approvals.standing import event_data, use_event, used


@dataclass(frozen=True)
class Opened:
    """An approval that opens authorized.

    ``standing`` is the standing approval that authorizes it, with its new uses, and
    ``events`` tell of them.
    """

    approval: Approval
    standing: Approval | None = None
    events: tuple[Event, ...] = ()


def cleared(approval: Approval) -> Approval:
    """Return an approval whose calls are authorized as it opens.

    A failure is the agent's own to deal with: people are told, and asked nothing.
    """
    items = [
        item.with_(state=advance(item.state, Transition.CLEAR), asks_on_failure=False)
        for item in approval.items
    ]
    ages = (item.authorization_ms for item in items)
    lifetime_ms = timing.authorization_ms(*ages)
    return approval.replacing(*items, ttl_ms=lifetime_ms, waiting=Waiting())


def covered(
    approval: Approval, standing: Approval, amounts: Sequence[int], now_ms: int
) -> Opened:
    """Return an approval whose calls a standing approval authorizes as it opens.

    Args:
        approval: the new record.
        standing: what covers its calls, as it was read.
        amounts: what each call uses of its total, in millionths.
        now_ms: the store's clock.
    """
    items: list[Item] = []
    events: list[Event] = []
    # One after the other: each use is told with what it left.
    for item, amount in zip(approval.items, amounts, strict=True):
        standing, cover = used(standing, item.id, amount, now_ms)
        items.append(item.with_(cover=cover))
        events.append(use_event(standing, item.id, cover))
    return Opened(cleared(approval.replacing(*items)), standing, tuple(events))


def opened_events(approval: Approval) -> list[Event]:
    """Return what is announced of a new approval."""
    event = approval_event(approval, EventName.APPROVAL_OPENED)
    event = event.with_(action_hash=approval.digest)
    if not approval.is_auto_approved:
        return [event]
    return [event, *(_authorized(approval, item) for item in approval.items)]


def _authorized(approval: Approval, item: Item) -> Event:
    reason = " ".join(item.reasons)
    event = approval_event(approval, EventName.ITEM_AUTHORIZED, item, reason=reason)
    if item.cover is None:
        return event.with_(actor=BY_POLICY)
    # Decided by those who gave the standing approval, when they gave it.
    given_by = listed(item.cover.given_by)
    return event.with_(actor=given_by, data=event.data | event_data(item.cover))
