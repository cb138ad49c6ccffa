"""Seal with the secret in use what was sealed with one before and outlives it.

While a secret is being replaced, a gateway that starts seals the list of freezes and
the delegations anew: nothing else writes them again by itself. What belongs to calls
that wait ends with them.
"""

from __future__ import annotations

import logging

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)


async def reseal(store: Store, tenant: str) -> None:
    """Seal anew what an older secret sealed of a tenant; never fails.

    What cannot be read now is sealed at the next start: until then the older secret is
    needed, as it is named.
    """
    if len(store.conn.secrets) < 2:  # noqa: PLR2004 - one in use, and one before
        return
    try:
        for keys in store.every_shard():
            await store.freezes.reseal(keys, tenant)
            await store.delegations.reseal(keys, tenant)
    except StoreUnavailable as error:
        logger.warning("secret.not_resealed why=%s", error)
