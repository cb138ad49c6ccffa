"""Base classes of services that work on one tenant's records."""

from __future__ import annotations

from collections.abc import Callable

from twokey.gateway.policy.rules import Policy
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


class PolicyService(TenantService):
    """A tenant's part of the store, and the policy by which calls are evaluated.

    Args:
        store: where everything is kept.
        policy: returns the policy in force now.
        tenant: whose records the service reads and changes.
    """

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, tenant=tenant)
        self._policy = policy
