"""Ask the policy about calls that are about to start, before they are claimed.

A program elsewhere that is told of an approval claims the call a moment later. The
policy is asked meanwhile, and what it said is kept as that of a decision in this
process is (`twokey.gateway.service.decided_by`): only what cannot change until the
claim, or is compared in the step that writes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice

from twokey.gateway.approvals.record import approval_of
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.failures import log_failure
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.call_evaluation import WaitingCall, read_calls
from twokey.gateway.service.decided_by import Asked, decided_by
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

MOST = 16
"""About how many calls the policy is asked at once; the others are asked about when
they are claimed, by which time those before them run."""


class ClaimsAhead(PolicyService):
    """Asks about calls while nobody waits for that.

    Args:
        store: where everything is kept.
        policy: returns the policy in force now.
        tenant: whose calls these are.
    """

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._asking = set[asyncio.Task[None]]()

    def begin(self, item_ids: Iterable[str]) -> None:
        """Begin to ask about those of these calls that may start."""
        by_approval = dict[str, set[int]]()
        for one in islice(item_ids, MOST):
            # Any text may be asked about.
            with suppress(ValueError):
                approval_id, index = approval_of(one)
                by_approval.setdefault(approval_id, set()).add(index)
        for approval_id, indexes in by_approval.items():
            task = asyncio.create_task(self._ask(approval_id, indexes))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def close(self) -> None:
        """Wait for what was begun."""
        if self._asking:
            await asyncio.wait(self._asking)

    async def _ask(self, approval_id: str, indexes: set[int]) -> None:
        # As it was read for the answer: a claim is computed from the same.
        approval = self._store.approvals.remembered(approval_id)
        if approval is None or approval.tenant != self._tenant:
            return
        calls = [
            WaitingCall(approval, one, one.args)
            for one in approval.items
            if one.index in indexes and one.state is ItemState.AUTHORIZED
        ]
        policy = self._policy()
        try:
            found = await read_calls(self._store, policy, calls)
            evaluated = {one.call.item.index: one.evaluated() for one in found}
        except StoreUnavailable:
            return
        except Exception as error:  # noqa: BLE001 - claims ask by themselves
            log_failure(logger, error, "claims.not_asked_ahead")
            return
        decided_by(self._store).keep(Asked(policy, evaluated), approval)
