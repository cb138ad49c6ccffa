"""End standing approvals: by a person, a freeze, a rejection, or a policy change."""

from __future__ import annotations

import logging
from collections.abc import Callable

from twokey.gateway.approvals.decisions import Reviewer
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.standing import end
from twokey.gateway.errors import CorruptRecord
from twokey.gateway.failures import log_failure
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)


async def end_standing(
    store: Store,
    keys: Keys,
    approval_id: str,
    reason: str,
    *,
    by: Reviewer | None = None,
) -> bool:
    """End a standing approval, or its proposal; False when it has ended before.

    Raises:
        StoreUnavailable: when it is not known to have ended.
    """

    async def compute(loaded: Loaded) -> Write | None:
        if not loaded.approval.is_standing:
            return None
        change = end(loaded.approval, reason, loaded.now_ms, by=by)
        return Write(change) if change else None

    try:
        found = await store.approvals.change(approval_id, compute)
    except CorruptRecord as error:
        log_failure(logger, error, "record.corrupt")  # it covers nothing
        return False
    if not isinstance(found, Write):
        return False
    # After the record: one that is listed and has ended costs a look.
    await store.standing.drop(keys, found.approval.tenant, approval_id)
    logger.info("standing.ended approval=%s why=%s", approval_id, reason)
    return True


async def end_those(
    store: Store,
    keys: Keys,
    tenant: str,
    is_ended: Callable[[Approval], bool],
    reason: str,
) -> list[str]:
    """End all standing approvals of a tenant that a condition holds of.

    Proposals that still wait for people are among them.

    Raises:
        StoreUnavailable: when one of them is not known to have ended.
    """
    ids = await store.standing.listed(keys, tenant)
    # One of a newer version raises: it could not be looked at, so nobody may think
    # that it has ended.
    found = await store.approvals.load_each(ids, skips_newer=False)
    chosen = [
        loaded.approval.id
        for loaded in found
        if loaded.approval.tenant == tenant
        and loaded.approval.is_standing
        and is_ended(loaded.approval)
    ]
    return [one for one in chosen if await end_standing(store, keys, one, reason)]
