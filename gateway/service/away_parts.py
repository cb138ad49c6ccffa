"""Read what several parts of a tenant have, and leave out those that do not answer.

People decide what they see: a list that leaves something out has to say so. So who
reads without a part says which one, and who must not leave anything out gets an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from twokey.gateway.errors import AuditUnreadable, StoreUnavailable
from twokey.gateway.service.merging import all_of
from twokey.gateway.store.keys import Keys

ANSWERS_WITHIN_S = 1.0
"""How long a part is waited for that may be left out.

Slack waits three seconds for a list, and a server that hangs is noticed after ten.
"""

Found = TypeVar("Found")
Row = TypeVar("Row")


class AwayParts:
    """The parts of a tenant that one look leaves out.

    A part that did not answer is not asked again by the same look, so several of them
    cost the time of one. The tenant's own shard is never left out: it has what every
    answer depends on, such as delegations.

    Args:
        parts: of the tenant, its own shard first.

    Attributes:
        shards: those that did not answer.
        newer: approvals that were left out because a newer version wrote them.
        parts: how many parts the tenant has.
    """

    def __init__(self, parts: Sequence[Keys]) -> None:
        self._optional = {keys.shard for keys in parts[1:]}
        self.parts = len(parts)
        self.shards: set[str] = set()
        self.newer: set[str] = set()

    async def read(self, keys: Keys, work: Awaitable[Found]) -> list[Found]:
        """Return what a part has, as the one row of a list; none: it does not answer.

        Raises:
            StoreUnavailable: it is the tenant's own shard.
        """
        try:
            if keys.shard not in self._optional:
                return [await work]
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                return [await work]
        except (StoreUnavailable, TimeoutError) as error:
            # What is missing in files does not come back by itself, as a server does.
            is_needed = keys.shard not in self._optional
            if is_needed or isinstance(error, AuditUnreadable):
                raise
            self.shards.add(keys.shard)
            return []

    async def rows(
        self, keys: Keys, stream: AsyncGenerator[Row]
    ) -> AsyncGenerator[Row]:
        """Yield the rows of a part, until it does not answer; see `read`."""
        async with aclosing(stream):
            while keys.shard not in self.shards:
                for found in await self.read(keys, anext(stream, None)):
                    if found is None:
                        return
                    yield found


async def of_each(
    parts: Sequence[Keys],
    read: Callable[[Keys], Awaitable[Found]],
    away: AwayParts | None = None,
) -> list[Found]:
    """Return what each part has, all of them asked at once, in their order.

    Args:
        parts: of a tenant.
        read: asks one.
        away: remembers those that do not answer, which are left out; None: all count.

    Raises:
        StoreUnavailable: one does not answer that is not left out.
    """
    if away is None:
        return await all_of([read(keys) for keys in parts])
    asked = [keys for keys in parts if keys.shard not in away.shards]
    found = await all_of([away.read(keys, read(keys)) for keys in asked])
    return [one for rows in found for one in rows]
