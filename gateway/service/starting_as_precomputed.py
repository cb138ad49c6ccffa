"""Claim a call as it was precomputed while it waited, where nothing differs.

See `twokey.gateway.service.precomputed_starts`. Whether the call is started is asked
once more, by the code that starts calls, while the script is on its way: the answer to
the claim, and the record that others are computed from, are of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property

from twokey.gateway.approvals.record import Approval, Item, approval_of
from twokey.gateway.errors import NotVerified
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.wire import ClaimReply, ClaimRequest
from twokey.gateway.service.decided_by import decided_just_now
from twokey.gateway.service.precomputed_starts import Start, granted, starts_of
from twokey.gateway.service.receipts import Receipts
from twokey.gateway.service.starting import is_same_call
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.store.atomic_write import Assumed, Loaded, Write
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.freezes import names_of
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.next_version import unsealed
from twokey.gateway.store.precomputed import Beside, MadeOnce
from twokey.gateway.store.record_heads import sealed
from twokey.gateway.store.record_seals import RecordSeals
from twokey.gateway.store.store import Store
from twokey.gateway.store.templates import Moment

Reply = Callable[[Approval, int], ClaimReply]
"""Returns the answer to a claim of an item, given what stands after it."""


class StartingAsPrecomputed(PolicyService):
    """Claims calls that were approved in this process a moment before.

    Args:
        store: where claims are written.
        policy: returns the policy in force now.
        receipts: verifies what authorized a call.
        tenant: whose calls these are.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], Policy],
        receipts: Receipts,
        *,
        tenant: str = "default",
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._receipts = receipts

    async def claim(self, request: ClaimRequest, reply: Reply) -> ClaimReply | None:
        """Grant a claim as it was precomputed; None: it has to be made the long way.

        Args:
            request: what is claimed, by whom.
            reply: returns the answer.

        Raises:
            StoreUnavailable: when it is not known to be granted.
            LeaseLost: another holder has the lease of the thread now.
        """
        found = starts_of(self._store).take(request.item_id)
        if found is None:
            return None
        approval_id, index = approval_of(request.item_id)
        approvals = self._store.approvals
        keys = self._store.keys_of_approval(approval_id)
        loaded = approvals.with_seal(approval_id, found.seal)
        if keys is None or loaded is None or not self._fits(found, loaded, request):
            return None
        item = loaded.approval.items[index]
        moment = found.moment(item, request.owner, loaded.now_ms)
        if moment is None:
            return None
        started = _Started(self._store.conn, keys, loaded, item, found, moment, reply)
        soon = asyncio.get_running_loop().call_soon
        # Not in the next turn of the loop, which sends the script.
        soon(soon, started.look)
        names = names_of(loaded.approval.agent, item.tool)
        if not await approvals.write_precomputed(
            keys,
            found.write,
            moment,
            Beside(Assumed(), unfrozen=names),
            MadeOnce(started.record),
        ):
            return None
        return started.answer

    def _fits(self, found: Start, loaded: Loaded, request: ClaimRequest) -> bool:
        """Return whether a call may be started as it was precomputed."""
        approval, policy = loaded.approval, self._policy()
        item = approval.items[approval_of(request.item_id)[1]]
        if (
            approval.tenant != self._tenant
            or not is_same_call(request, item)
            # By the very policy of now, which has said nothing else since. That it is
            # authorized is in the record that was sealed.
            or decided_just_now(self._store, policy, loaded, item)
            is not found.evaluated
            or found.lease_ms != self._store.lease_ms
        ):
            return False
        try:
            self._receipts.check(approval, item, None)
        except NotVerified:
            return False
        return True


class _Started:
    """What the code that starts calls makes of a call that is started."""

    def __init__(
        self,
        conn: Connection,
        keys: Keys,
        loaded: Loaded,
        item: Item,
        found: Start,
        moment: Moment,
        reply: Reply,
    ) -> None:
        self._conn, self._keys = conn, keys
        self._loaded, self._item = loaded, item
        self._found, self._moment = found, moment
        self._reply = reply

    @cached_property
    def granted(self) -> Write | None:
        """Return what is written; None where the call is not started."""
        owner, lease_ms = self._moment.owner, self._found.lease_ms
        evaluated = self._found.evaluated
        return granted(
            self._loaded, self._item, evaluated, owner=owner, lease_ms=lease_ms
        )

    @cached_property
    def answer(self) -> ClaimReply | None:
        """Return the answer to the claim once it is written."""
        write = self.granted
        return None if write is None else self._reply(write.approval, self._item.index)

    def look(self) -> None:
        """Make the answer while the script is on its way."""
        # What is wrong is raised to who claims, once it is known to be written.
        with suppress(Exception):
            _ = self.answer

    def record(self, at_ms: int) -> Loaded | None:
        """Return the record that is written, at a time of the store."""
        write = self.granted
        if write is None:
            return None
        after = unsealed(self._conn, self._keys, self._loaded, write).stored
        stored = sealed(RecordSeals(self._conn), write.approval.id, after)
        return Loaded(write.approval, at_ms, stored=stored)
