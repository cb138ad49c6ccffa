"""Side effects of a rejection: record it, end matching standing approvals."""

from __future__ import annotations

from collections.abc import Sequence

from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.standing import REJECTED, is_about
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.standing_ends import end_those
from twokey.gateway.store.agent_load import rejection_effects
from twokey.gateway.store.store import Store


async def rejection_of(
    store: Store, policy: Policy, approval: Approval, items: Sequence[Item]
) -> dict[str, object]:
    """Return what a decision writes of its rejections; end what they end.

    Args:
        store: where standing approvals are.
        policy: in force.
        approval: the next version of the approval.
        items: those that were decided.

    Raises:
        StoreUnavailable: when it is not known that the standing approvals have ended.
    """
    rejected = [item for item in items if item.state is ItemState.REJECTED]
    calls = [one for one in rejected if not (one.is_standing or one.is_question)]
    if calls:
        keys = store.keys_of_agent(approval.tenant, approval.run_ref.agent)
        # Before the rejection is written: a crash in between leaves too little allowed.
        await end_those(
            store,
            keys,
            approval.tenant,
            lambda standing: any(is_about(standing, one) for one in calls),
            REJECTED,
        )
    pause_after = policy.protect.pause_after_rejections
    return rejection_effects(approval, rejected, pause_after=pause_after)
