"""Base classes of services that work on one tenant's records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Unknown
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.store.atomic_write import Loaded, Write
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Role, SigningKey

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
        self._keys = store.keys_of_tenant(tenant)

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

    @property
    def policy_now(self) -> Policy:
        """Return the policy in force."""
        return self._policy()
