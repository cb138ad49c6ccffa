"""Count the calls that wait under a signing key: without it they are refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.protocol.receipts import LIFETIME_S, SKEW_S
from keyturn.gateway.protocol.states import ItemState
from keyturn.gateway.store.atomic_write import Loaded
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Role

_MAY_RUN = {
    ItemState.PENDING,
    ItemState.AUTHORIZED,
    ItemState.EXECUTING,
    # People may find that it has to run again, under the votes that it has.
    ItemState.IN_DOUBT,
}

_RECEIPT_MS = (LIFETIME_S + SKEW_S) * 1000


async def calls_under(store: Store, tenant: str, role: Role, key_id: str) -> int:
    """Return how many calls wait for what a key signed.

    Of the bot these are calls that may still run, and in which a word of a person is
    signed with it; of the gateway, calls whose receipt may be verified yet: they run
    now, or are in doubt, and a process that was given up on may be running them. The
    audit log is verified with keys that are retired as well.

    Args:
        store: the store.
        tenant: whose calls.
        role: whose key it is.
        key_id: of the key, as `keyturn keys list` shows it.

    Raises:
        StoreUnavailable: when it is not known.
    """
    # Words are in votes, edits, findings and answers, so the whole call is looked at.
    # No text of others passes for one: its quotes are escaped.
    signed = f'"key":"{key_id}"'

    def waits(item: Item, now_ms: int) -> bool:
        if role is Role.BOT:
            return item.state in _MAY_RUN and signed in item.model_dump_json()
        if item.state is ItemState.IN_DOUBT:
            # Its claim was granted before the doubt.
            return now_ms <= item.changed_at_ms + _RECEIPT_MS
        return item.state is ItemState.EXECUTING

    if role is Role.AUDIT:
        return 0
    count = 0
    async for found in _unended(store, tenant):
        count += sum(waits(item, found.now_ms) for item in found.approval.items)
    return count


async def _unended(store: Store, tenant: str) -> AsyncGenerator[Loaded]:
    """Yield a tenant's approvals with calls that wait, run, or are in doubt."""
    keys = store.keys_of_tenant(tenant)
    ids = await store.approvals.scheduled(keys)
    # Nothing ends a doubt by itself, so it has no deadline; people are reminded of it
    # until they end it.
    ids += await store.timers.approvals_with(keys, TimerKind.DOUBT)
    for one in dict.fromkeys(ids):
        for loaded in await store.approvals.load_each([one]):
            if loaded.approval.tenant == tenant:
                yield loaded
