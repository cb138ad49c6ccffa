"""Remember signed requests in the store, for all bots of a tenant; report replays."""

from __future__ import annotations

import asyncio
import secrets

from twokey.gateway.approvals.security import SecurityEvent, SecurityKind
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.store import Store

_MOST_UNSURE = 1000


async def report_lookup(store: Store, tenant: str, user: str) -> None:
    """Report that Slack did not say who somebody is, so that they decide nothing."""
    failed = SecurityEvent(
        kind=SecurityKind.LOOKUP_FAILED, tenant=tenant, about="person", name=user
    )
    await store.security.report(store.keys_of_tenant(tenant), failed)


class StoreNonces:
    """Remember requests in the tenant's shard."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._cards = store.cards
        self._security = store.security
        self._keys = store.keys_of_tenant(tenant)
        self._tenant = tenant
        self._unsure = dict[str, bytes]()

    async def is_first(self, digest: str) -> bool:
        """Return whether this is new; raises `StoreUnavailable`.

        One for which this was raised, or cancelled, is still new when it comes again:
        nothing was done of it, and the store may remember it all the same.
        """
        mine = self._unsure.pop(digest, None) or secrets.token_bytes(8)
        try:
            is_new = await self._cards.is_first(self._keys, digest, mine)
        except (StoreUnavailable, asyncio.CancelledError):
            self._unsure[digest] = mine
            if len(self._unsure) > _MOST_UNSURE:
                del self._unsure[next(iter(self._unsure))]
            raise
        if not is_new:
            replayed = SecurityEvent(
                kind=SecurityKind.REQUEST_REPLAYED,
                tenant=self._tenant,
                about="request",
                evidence=digest,
            )
            await self._security.report(self._keys, replayed)
        return is_new

    async def forget(self, digest: str) -> None:
        """Let a request be new again; raises `StoreUnavailable`."""
        await self._cards.forget(self._keys, digest)
