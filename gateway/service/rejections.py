"""Effects of a rejection: remember it, and pause an agent with too many."""

from __future__ import annotations

from twokey.gateway.approvals.events import BY_GATEWAY, EventName, approval_event
from twokey.gateway.approvals.record import Approval, Item, Settlement
from twokey.gateway.store.agent_load import Rejection, RejectionEffects, fingerprint
from twokey.gateway.store.freezes import Freeze, Scope, ScopeKind


def rejection_effects(
    approval: Approval, item: Item, settlement: Settlement, *, pause_after: int
) -> RejectionEffects:
    """Return what a rejection is remembered as, and how it may pause the agent."""
    by, at_ms = settlement.by, settlement.at_ms
    reason = f"{pause_after} of its calls were rejected in a row"
    pause = Freeze(
        scope=Scope(kind=ScopeKind.AGENT, name=approval.agent),
        by=BY_GATEWAY,
        reason=reason,
        at_ms=at_ms,
        is_pause=True,
    )
    told = approval_event(approval, EventName.AGENT_PAUSED, reason=reason)
    return RejectionEffects(
        call=fingerprint(item.tool, item.requested_args),
        rejection=Rejection(by=by.name or by.user, at_ms=at_ms, reason=settlement.text),
        pause_after=pause_after,
        pause=pause,
        event=told.with_(actor=BY_GATEWAY, tool=item.tool),
    )
