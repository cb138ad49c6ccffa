"""Remember signed requests and envelopes in the store, for all bots of a tenant."""

from __future__ import annotations

from twokey.gateway.store.store import Store


class StoreNonces:
    """Remember requests in the tenant's shard."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._cards = store.cards
        self._keys = store.keys_of_tenant(tenant)

    async def is_first(self, digest: str) -> bool:
        """Return whether this is new; raises `StoreUnavailable`."""
        return await self._cards.is_first(self._keys, digest)

    async def forget(self, digest: str) -> None:
        """Let a request be new again; raises `StoreUnavailable`."""
        await self._cards.forget(self._keys, digest)
