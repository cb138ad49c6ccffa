"""Describe what happened to an item as an event."""

from __future__ import annotations

from gateway.approvals.events import Event, EventName
from gateway.approvals.record import Approval, Item


def item_event(
    approval: Approval, item: Item, name: EventName, *, reason: str = ""
) -> Event:
    """Return an event about one item, without any of its arguments."""
    return Event(
        name=name,
        tenant=approval.tenant,
        agent=approval.agent,
        thread=approval.thread,
        approval=approval.id,
        item=item.id,
        tool=item.tool,
        tier=item.tier,
        version=approval.version,
        action_hash=item.action_hash,
        policy_digest=approval.policy_digest,
        channel=approval.channel,
        reason=reason,
    )
