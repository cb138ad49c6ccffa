"""Count the calls that wait under a signing key: without it they are refused."""

from __future__ import annotations

from twokey.gateway.approvals.lifecycle import FINAL
from twokey.gateway.approvals.record import Item
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.recovering import RecoveryService
from twokey.gateway.store.store import Store
from twokey.gateway.trust.key_folder import Role


async def calls_under(store: Store, tenant: str, role: Role, key_id: str) -> int:
    """Return how many calls wait for what a key signed.

    Of the bot these are calls that have not ended and in which a word of a person is
    signed with it; of the gateway, calls that run now: their receipt may be verified
    yet. The audit log is verified with keys that are retired as well.

    Args:
        store: the store.
        tenant: whose calls.
        role: whose key it is.
        key_id: of the key, as `twokey keys list` shows it.

    Raises:
        StoreUnavailable: when it is not known.
    """
    # Words are in votes, edits, findings and answers, so the whole call is looked at.
    # No text of others passes for one: its quotes are escaped.
    signed = f'"key":"{key_id}"'

    def waits(item: Item) -> bool:
        if role is Role.GATEWAY:
            return item.state is ItemState.EXECUTING
        return item.state not in FINAL and signed in item.model_dump_json()

    if role is Role.AUDIT:
        return 0
    count = 0
    async for approval in RecoveryService(store, tenant=tenant).unfinished():
        count += sum(map(waits, approval.items))
    return count
