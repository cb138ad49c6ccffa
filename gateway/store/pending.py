"""Index of the agents that may have pending items, by tenant.

Each agent's pending items stand in a sorted set of its own, which every script that
moves an item keeps exact. What is kept here is the list of agents that may have one, so
that a tenant's items are found whatever else waits or executes in its shard.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from twokey.gateway.store.connection import Argument, Reply, text
from twokey.gateway.store.keys import LISTED_BYTES, Keys
from twokey.gateway.store.listed_members import ListedMembers


class PendingIndex:
    """The pending items of all tenants."""

    def __init__(self, members: ListedMembers) -> None:
        self._conn = members.conn
        self._members = members

    async def add(self, keys: Keys, tenant: str, *agents: str) -> None:
        """List agents; before they open anything, so that nothing is ever missed."""
        if agents:
            await self._conn.command("SADD", keys.agents(tenant), *agents)

    async def soonest(self, keys: Keys, tenant: str, limit: int) -> list[str]:
        """Return a tenant's approvals with a pending item, the soonest due first.

        At most ``limit`` are returned.
        """
        key = keys.agents(tenant)
        listed = await self._members.read(
            keys,
            key,
            await self._conn.command("SMEMBERS", key),
            text,
            tenant=tenant,
            taken_out="SREM",
        )
        if not listed:
            return []
        waiting = [keys.waiting(tenant, agent) for agent in listed]
        # An approval has a row for each of its calls. More rows of an agent are read
        # only where its first ones are of too few approvals.
        rows = limit
        while True:
            commands: list[list[Argument]] = [
                ["ZRANGE", name, 0, rows - 1, "WITHSCORES"] for name in waiting
            ]
            pages = await self._conn.transaction(*commands)
            due: dict[str, float] = {}
            for name, page in zip(waiting, pages, strict=True):
                for approval, at_ms in await self._scored(keys, name, page, tenant):
                    # A card of several calls is listed once, by the first that is due.
                    due[approval] = min(at_ms, due.get(approval, at_ms))
            if len(due) >= limit or not any(map(partial(_is_cut, rows), pages)):
                break
            rows *= 2
        # The id breaks ties, so that two looks at a queue show it in one order.
        return sorted(due, key=lambda one: (due[one], one))[:limit]

    async def _scored(
        self, keys: Keys, name: str, reply: Reply, tenant: str
    ) -> list[tuple[str, float]]:
        """Read the approvals of items with their scores."""

        def approval(member: bytes) -> str:
            # An item is listed by its approval, and its number behind that.
            if not member[LISTED_BYTES:].isdigit():
                raise ValueError("no item")
            return keys.unlisted(member[:LISTED_BYTES])

        return await self._members.scored(keys, name, reply, approval, tenant=tenant)


def _is_cut(rows: int, reply: Reply) -> bool:
    return len(cast("list[bytes]", reply or [])) >= 2 * rows
