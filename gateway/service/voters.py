"""Resolve those who voted for an item before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.states import ItemState

Voters = Callable[[Item], Awaitable[Sequence[Reviewer]]]
"""Resolves, now, those who voted for an item before."""


async def asked(
    approval: Approval, index: int, voters: Voters | None
) -> Sequence[Reviewer]:
    """Resolve who voted for an item before; without votes nothing is requested."""
    if voters is None or not 0 <= index < len(approval.items):
        return ()
    item = approval.items[index]
    if item.state is ItemState.IN_DOUBT:
        # The votes that count here are the observations of this attempt, not the
        # approvals of the call.
        found = tuple(one.vote for one in item.observations_now)
        return await voters(item.with_(votes=found)) if found else ()
    return await voters(item) if item.is_pending and item.votes else ()
