"""Describe what happened to an item as an event, and what a rejection brings."""

from __future__ import annotations

from gateway.approvals.events import Event, EventName
from gateway.approvals.record import Approval, Item, Settlement
from gateway.store.attention import Aftermath, Rejection, fingerprint
from gateway.store.freezes import Freeze, Scope, ScopeKind

GATEWAY = "twokey"
"""Who pauses agents, in the audit log."""


def item_event(
    approval: Approval, item: Item, name: EventName, *, reason: str = ""
) -> Event:
    """Return an event about one item, without any of its arguments."""
    return Event(
        name=name,
        tenant=approval.tenant,
        agent=approval.agent,
        thread=approval.thread,
        outer=approval.outer,
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


def aftermath(
    approval: Approval, item: Item, settlement: Settlement, *, pause_after: int
) -> Aftermath:
    """Return what a rejection is remembered as, and how it may pause the agent."""
    by, at_ms = settlement.by, settlement.at_ms
    reason = f"{pause_after} of its calls were rejected in a row"
    pause = Freeze(
        scope=Scope(kind=ScopeKind.AGENT, name=approval.agent),
        by=GATEWAY,
        reason=reason,
        at_ms=at_ms,
        is_pause=True,
    )
    paused = item_event(approval, item, EventName.AGENT_PAUSED, reason=reason)
    return Aftermath(
        call=fingerprint(item.tool, item.requested_args),
        rejection=Rejection(by=by.name or by.user, at_ms=at_ms, reason=settlement.text),
        pause_after=pause_after,
        pause=pause,
        event=paused.with_(actor=GATEWAY, item="", action_hash="", tier=""),
    )
