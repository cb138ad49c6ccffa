"""Base classes of services that work on one tenant's records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Unknown
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.store.records.atomic_write import Loaded, Write
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Role, SigningKey

Other = TypeVar("Other")


class TenantService:
    """One tenant's part of the store.

    Args:
        store: the store.
        tenant: the tenant whose records the service reads and changes.
    """

    def __init__(self, store: Store, *, tenant: str = "default") -> None:
        self._store = store
        self._tenant = tenant
        self._keys = store.keys_of_tenant(tenant)

    @property
    def _decision_key(self) -> SigningKey | None:
        """Return the key that signs people's decisions; None for a store without keys.

        Raises:
            SettingsError: when this process has no key to sign decisions with.
        """
        keyring = self._store.keyring
        return keyring.signing(Role.BOT) if keyring else None

    async def _load(self, approval_id: str) -> Loaded | None:
        """Return an approval of the tenant; None for any other id.

        Raises:
            CorruptRecord: when the record is corrupt.
        """
        loaded = await self._store.approvals.load(approval_id)
        # The same as for an unknown id: the ids of other tenants stay hidden.
        return loaded if loaded and loaded.approval.tenant == self._tenant else None

    async def _load_each(self, approval_ids: Iterable[str]) -> list[Loaded]:
        """Return the tenant's approvals among these that exist and can be read."""
        found = await self._store.approvals.load_each(approval_ids)
        return [one for one in found if one.approval.tenant == self._tenant]

    async def change_own(
        self, approval_id: str, change: Callable[..., Change | Other], *given: object
    ) -> Change | Other | Unknown:
        """Write the change that ``change`` returns for an approval, if any.

        It gets the approval, ``given``, and the store's time. Any other value that it
        returns is returned, and nothing is written.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """

        async def compute(loaded: Loaded) -> Write | Other | Unknown:
            if loaded.approval.tenant != self._tenant:
                return Unknown()
            found = change(loaded.approval, *given, loaded.now_ms)
            return Write(found) if isinstance(found, Change) else found

        found = await self._store.approvals.change(approval_id, compute)
        if found is None:
            return Unknown()
        return found.change if isinstance(found, Write) else found


class PolicyService(TenantService):
    """A tenant's part of the store, and the policy that evaluates its calls.

    Args:
        store: the store.
        policy: returns the policy in force now.
        tenant: the tenant whose records the service reads and changes.
    """

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, tenant=tenant)
        self._policy = policy

    @property
    def policy_now(self) -> Policy:
        """Return the policy in force."""
        return self._policy()
