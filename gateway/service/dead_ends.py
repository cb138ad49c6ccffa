"""Find calls that wait for people and that nobody can approve any more.

The policy changes while calls wait: people are replaced, roles get other names, a tool
is forbidden. Such a call can still be rejected, and it ends by its own time; whoever
runs the gateway should know of it before.
"""

from __future__ import annotations

from twokey.gateway.approvals.permission import is_dead_end
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.service.judging import as_of_now
from twokey.gateway.service.queue import ReviewQueue
from twokey.gateway.store.store import Store

MOST = 1_000
"""How many approvals are looked at, those that are due soonest."""


async def dead_ends(store: Store, policy: Policy, *, tenant: str) -> list[Item]:
    """Return waiting calls that nobody can approve by this policy.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    found: list[Item] = []
    async for loaded in ReviewQueue(store, tenant=tenant).waiting(MOST):
        shown = await as_of_now(store, policy, loaded.approval)
        found += [item for item in shown.items if _is_stuck(shown, item)]
    return found


def _is_stuck(approval: Approval, item: Item) -> bool:
    if not item.is_pending:
        return False
    return item.tier is Tier.DENY or is_dead_end(approval, item, item.requirement)
