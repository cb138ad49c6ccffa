"""Base classes of services that work on one tenant's records.

A tenant has its records in one shard, or, where it is split by agent, those of each
agent's runs in one. What belongs to a run is in `keys_of_agent`, what names an approval
is found by its id, and what the tenant has as a whole is read from each of its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import Unknown
from twokey.gateway.approvals.record import Approval
from twokey.gateway.policy.rules import Policy
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store
from twokey.gateway.trust.key_folder import Role
from twokey.gateway.trust.signing_key import SigningKey

Other = TypeVar("Other")


class TenantService:
    """One tenant's part of the store.

    Args:
        store: where everything is kept.
        tenant: whose records the service reads and changes.
    """

    def __init__(self, store: Store, *, tenant: str = "default") -> None:
        self._store = store
        self._tenant = tenant
        self._own = store.keys_of_tenant(tenant)
        self._parts = store.parts_of(tenant)

    def _keys_of(self, agent: str) -> Keys:
        """Return the keys of the shard in which the runs of an agent are."""
        # A call asks for them three times.
        if self._store.is_split(self._tenant):
            return self._store.keys_of_agent(self._tenant, agent)
        return self._own

    @property
    def _decision_key(self) -> SigningKey | None:
        """Return what signs the decisions of people; None: nothing does.

        Raises:
            SettingsError: when this process is not one in which people decide.
        """
        keyring = self._store.keyring
        return keyring.signing(Role.BOT) if keyring else None

    async def _change_own(
        self, approval_id: str, change: Callable[[Approval, int], Change | Other]
    ) -> Change | Other | Unknown:
        """Write what ``change`` makes of an approval at the store's time, if anything.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """

        async def compute(loaded: Loaded) -> Write | Other | Unknown:
            # As for an id that does not exist: another tenant's is not to be told apart
            # from it.
            if loaded.approval.tenant != self._tenant:
                return Unknown()
            found = change(loaded.approval, loaded.now_ms)
            return Write(found) if isinstance(found, Change) else found

        found = await self._store.approvals.change(approval_id, compute)
        if found is None:
            return Unknown()
        return found.change if isinstance(found, Write) else found


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
