"""Base of the services that work on the records of one tenant."""

from __future__ import annotations

from twokey.gateway.store.store import Store


class TenantService:
    """One tenant's part of the store.

    Args:
        store: where everything is kept.
        tenant: whose records the service reads and changes.
    """

    def __init__(self, store: Store, *, tenant: str = "default") -> None:
        self._store = store
        self._tenant = tenant
        self._keys = store.keys_of_tenant(tenant)
