"""Read sorted sets of approvals, in which somebody else may have written."""

from __future__ import annotations

import logging
from typing import cast

from twokey.gateway.store.connection import Connection, Reply
from twokey.gateway.store.keys import Keys

logger = logging.getLogger(__name__)


async def unlisted_members(
    conn: Connection, keys: Keys, name: str, reply: Reply
) -> list[str]:
    """Return the approvals that are listed; what is no text is taken out.

    Others wait behind it.

    Args:
        conn: to the store.
        keys: of the shard.
        name: of the sorted set.
        reply: members of it.
    """
    found: list[str] = []
    for member in cast("list[bytes]", reply or []):
        try:
            found.append(keys.unlisted(member))
        except ValueError:
            logger.warning("member.junk shard=%s", keys.shard)
            await conn.command("ZREM", name, member)
    return found
