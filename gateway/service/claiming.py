"""Claim, heartbeat, release and finish executions, each at most once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from twokey.gateway.approvals import executing
from twokey.gateway.approvals.record import Approval, Item, approval_of
from twokey.gateway.approvals.revoking import revoke
from twokey.gateway.errors import CorruptRecord, NotVerified
from twokey.gateway.failures import log_failure
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.business_state import stateless_hash
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import (
    Busy,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Refused,
)
from twokey.gateway.service.call_evaluation import CurrentEvaluation
from twokey.gateway.service.call_outcomes import (
    last_finding,
    requested_before,
)
from twokey.gateway.service.covering import standing_of
from twokey.gateway.service.hidden_words import with_hidden_summary
from twokey.gateway.service.proven_words import proven_words, unproven_end
from twokey.gateway.service.receipts import Receipts
from twokey.gateway.service.spot_checks import with_spot_check
from twokey.gateway.service.starting import (
    grant,
    has_lapsed,
    is_same_call,
    start,
    unclaimable,
)
from twokey.gateway.service.starting_as_precomputed import StartingAsPrecomputed
from twokey.gateway.service.starting_together import StartingTogether
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.service.unproven import Unproven, refuse_unproven
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.store import Store
from twokey.gateway.uncancelled import begun, waited_for

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

_NOT_OURS = "The gateway knows no such call in this thread, so it must not run."


class ClaimService(PolicyService):
    """Grant executions of authorized calls, and record what they came to.

    Between a decision and the execution, time passes. A claim asks the policy of now,
    which may only be stricter, and compares the business state. An authorization that
    does not hold any more is taken back in the same step that refuses the claim.
    """

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._together = StartingTogether(store)
        self._receipts = Receipts(store, policy)
        self._as_precomputed = StartingAsPrecomputed(
            store, policy, self._receipts, tenant=tenant
        )

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Grant one execution of an authorized call, checked against our record.

        Raises:
            StoreUnavailable: when it is not known to be granted, or changes all the
                time.
            NewerRecord: when a newer version wrote the record.
        """
        reply = partial(self._reply, owner=request.owner, standing=None)
        started = await self._as_precomputed.claim(request, reply)
        if started is not None:
            return started

        async def compute(loaded: Loaded, item: Item) -> Write | ClaimReply | Unproven:
            return await self._claimed(loaded, item, request)

        with self._together.starts(request.item_id):
            found = await self._change(request.item_id, compute)
        if found is None:
            return Refused(reason=_NOT_OURS)
        if isinstance(found, Unproven):
            return await refuse_unproven(self._store, found)
        if not isinstance(found, Write):
            return found
        index = approval_of(request.item_id)[1]
        return self._reply(
            found.approval, index, owner=request.owner, standing=found.standing
        )

    async def heartbeat(self, item_id: str, fence: int) -> bool:
        """Keep a claim; False when it is no longer this fence's."""
        return await self._store.approvals.heartbeat(*approval_of(item_id), fence)

    async def release(
        self, item_id: str, fence: int, *, has_begun: bool = True
    ) -> None:
        """Give a claim back unused: the tool paused, or was not even begun."""
        await self.finish(item_id, fence, None, has_begun=has_begun)

    async def finish(
        self, item_id: str, fence: int, result: Result | None, *, has_begun: bool = True
    ) -> bool:
        """Record what an execution came to; without a result, give its claim back.

        Also when the caller is cancelled: nobody else knows the result. Returns False
        when the claim is another's, or people had reconciled the call.
        """

        async def compute(loaded: Loaded, item: Item) -> Write | bool:
            approval, now_ms = loaded.approval, loaded.now_ms
            ended = result and with_hidden_summary(result, item, self._policy())
            found = executing.finish(
                approval, item, fence, ended, now_ms=now_ms, has_begun=has_begun
            )
            if isinstance(found, bool):
                return found
            checked = await with_spot_check(
                self._store, self._policy(), found, item.index, now_ms
            )
            return Write(checked)

        found = await waited_for(begun(self._change(item_id, compute)))
        if isinstance(found, Write):
            return not executing.is_late(found.change)
        return bool(found)

    async def _change(
        self,
        item_id: str,
        compute: Callable[[Loaded, Item], Awaitable[Found]],
    ) -> Found | None:
        """Change one of the tenant's items; None for an id of none of them."""
        try:
            approval_id, index = approval_of(item_id)
        except ValueError:
            return None

        async def computed(loaded: Loaded) -> Found | None:
            approval = loaded.approval
            if approval.tenant != self._tenant or index >= len(approval.items):
                return None
            return await compute(loaded, approval.items[index])

        try:
            return await self._store.approvals.change(
                approval_id, computed, in_turn=True
            )
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")
            return None

    async def _claimed(
        self, loaded: Loaded, item: Item, request: ClaimRequest
    ) -> Write | ClaimReply | Unproven:
        # An item id alone would let one call be run with the approval of another.
        if item.is_standing or not is_same_call(request, item):
            return Refused(reason=_NOT_OURS, state=item.state)
        if item.state not in {ItemState.AUTHORIZED, ItemState.EXECUTING}:
            unproven = unproven_end(self._store, loaded.approval, item)
            said = proven_words(self._store, loaded.approval, item)
            return unproven or unclaimable(said)
        standing = await standing_of(self._store, item)
        try:
            self._receipts.check(loaded.approval, item, standing)
        except NotVerified as error:
            return Unproven(loaded.approval, item, error)
        if item.state is ItemState.AUTHORIZED:
            return await self._start(loaded, item, request, standing)
        return await self._take_over(loaded, item, request, standing)

    async def _start(
        self,
        loaded: Loaded,
        item: Item,
        request: ClaimRequest,
        standing: Approval | None,
    ) -> Write | ClaimReply:
        """Start an authorized call, unless its authorization holds no more."""
        # Refused from this moment on, even if the sweep comes late to write it down.
        if has_lapsed(item, loaded.now_ms):
            return unclaimable(item.with_(state=ItemState.LAPSED))
        return start(
            loaded,
            item,
            await self._evaluate_now(loaded, item),
            owner=request.owner,
            lease_ms=self._store.lease_ms,
            state=request.state,
            standing=standing,
        )

    async def _take_over(
        self,
        loaded: Loaded,
        item: Item,
        request: ClaimRequest,
        standing: Approval | None,
    ) -> Write | ClaimReply:
        """Decide how a call that was started before continues."""
        approval, now_ms = loaded.approval, loaded.now_ms
        # `owner` names one attempt, so this is the same claim asked again.
        if item.owner == request.owner:
            if await self._may_still_run(loaded, item, standing):
                # Its answer was lost.
                return self._reply(
                    approval, item.index, owner=request.owner, standing=standing
                )
            # It may have begun: a refusal would read as if nothing had run.
            return Write(
                executing.put_in_doubt(approval, item, now_ms=now_ms), is_fenced=True
            )
        cut = executing.shorten_claim(
            approval, item, lease_ms=self._store.lease_ms, now_ms=now_ms
        )
        if cut is not None:
            return Write(cut)
        # Even an idempotent call is not run by two at once.
        if now_ms < item.claimed_until_ms:
            return _busy(item.claimed_until_ms - now_ms)
        if item.idempotent and await self._may_still_run(loaded, item, standing):
            return grant(
                loaded,
                item,
                owner=request.owner,
                lease_ms=self._store.lease_ms,
                standing=standing,
            )
        return Write(
            executing.put_in_doubt(approval, item, now_ms=now_ms), is_fenced=True
        )

    async def _may_still_run(
        self, loaded: Loaded, item: Item, standing: Approval | None
    ) -> bool:
        """Return whether freezes and the policy of now let a started call run."""
        evaluated = await self._evaluate_now(loaded, item)
        back = revoke(
            loaded.approval,
            item.with_(state=ItemState.AUTHORIZED),
            evaluated.policy_now,
            now_ms=0,
            standing=standing,
        )
        return evaluated.freeze is None and back is None

    async def _evaluate_now(self, loaded: Loaded, item: Item) -> CurrentEvaluation:
        return await self._together.evaluated(self._policy(), loaded, item)

    def _reply(
        self, approval: Approval, index: int, *, owner: str, standing: Approval | None
    ) -> ClaimReply:
        """Return how a claim stands after it was written."""
        item = approval.items[index]
        if item.state is not ItemState.EXECUTING:
            return unclaimable(item)
        # The claim of another owner was only cut to the length of a lease.
        if item.owner != owner:
            return _busy(self._store.lease_ms)
        # Without the business state: put to people again in a new state, the call keeps
        # its key, and a tool that did run is not run twice.
        effect = stateless_hash(item.action)
        return Claimed(
            fence=item.fence,
            action=item.action,
            action_hash=item.action_hash,
            idempotency_key=digest.claim_key(item.ctx.as_dict(), effect),
            lease_s=self._store.lease_ms / 1000,
            edit=item.edit,
            asks_on_failure=item.asks_on_failure,
            reconciled=last_finding(proven_words(self._store, approval, item)),
            requested=requested_before(item),
            receipt=self._receipts.issue(approval, item, standing),
        )


def _busy(left_ms: int) -> Busy:
    # A fifth of what is left: soon enough after a live owner's end, seldom enough for
    # the store.
    return Busy(retry_after_s=min(0.5, max(0.05, left_ms / 5000)))
