"""Index of the agents that may have pending items, by tenant.

Each agent's pending items stand in a sorted set of its own, which every script that
moves an item keeps exact. What is kept here is the list of agents that may have one, so
that a tenant's items are found whatever else waits or executes.
"""

from __future__ import annotations

from contextlib import suppress

from keyturn.gateway.store.connection import Connection, text
from keyturn.gateway.store.keys import LISTED_BYTES, Keys
from keyturn.gateway.store.listed_members import without_junk
from keyturn.gateway.store.sorted_pages import Due, pages_by_score


class PendingIndex:
    """The pending items of all tenants."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def add(self, keys: Keys, *agents: str) -> None:
        """List agents; before they open anything, so that nothing is ever missed."""
        if agents:
            await self._conn.command("SADD", keys.agents, *agents)

    async def soonest(self, keys: Keys, limit: int) -> list[str]:
        """Return a tenant's approvals with a pending item, the soonest due first.

        At most ``limit`` are returned.
        """
        key = keys.agents
        agents = await self._conn.command("SMEMBERS", key)
        listed = await without_junk(self._conn, key, agents, text, taken_out="SREM")
        due: dict[str, float] = {}
        for agent in listed:
            due |= await self._of_agent(keys, keys.waiting(agent), limit)
        # The id breaks ties, so that two looks at a queue show it in one order.
        return sorted(due, key=lambda one: (due[one], one))[:limit]

    async def _of_agent(self, keys: Keys, name: str, limit: int) -> dict[str, float]:
        """Return an agent's approvals by when the first call of each is due."""

        def approval(one: Due) -> str:
            # An item is listed by its approval, and its number behind that.
            if not one.member[LISTED_BYTES:].isdigit():
                raise ValueError("no item")
            return keys.unlisted(one.member[:LISTED_BYTES])

        found: dict[str, float] = {}
        async for page in pages_by_score(self._conn, name, size=limit):
            for one in page:
                with suppress(ValueError):
                    found.setdefault(approval(one), float(one.at))
            if len(found) >= limit:
                break
        return found
