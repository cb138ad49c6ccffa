"""Read the lists of a run's open and ended approvals.

The lists are separate, so that a submission costs the same in a new run and in a run
with a hundred thousand earlier approvals.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.connection.connection import Connection, Reply, text
from keyturn.gateway.store.connection.listed_members import readable
from keyturn.gateway.store.keys import Keys


@dataclass(frozen=True)
class Listed:
    """An approval in its run's list: its id, and its agent's namespace."""

    id: str
    ns: str

    @classmethod
    def read(cls, member: bytes) -> Listed:
        """Parse a member of a list: an approval and the namespace."""
        approval, _, ns = member.decode().partition(" ")
        return cls(approval, ns)


class RunLists:
    """The approvals of each run."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def of_run(
        self, keys: Keys, run_ref: RunRef, *, newest: int = 0
    ) -> list[Listed]:
        """Return a run's approvals with those of nested agents, oldest first.

        ``newest`` limits the result to the latest ones; 0 for all.
        """
        # One MULTI: an approval that ends moves between the lists.
        ended, still_open = await self._conn.transaction(
            ["ZRANGE", keys.run(run_ref), -newest, -1, "WITHSCORES"],
            ["ZRANGE", keys.open_of_run(run_ref), 0, -1, "WITHSCORES"],
        )
        rows = sorted([*_scored(ended), *_scored(still_open)])
        return listed(member for _, member in rows[-newest:])

    async def open_of_run(self, keys: Keys, run_ref: RunRef) -> list[Listed]:
        """Return a run's approvals with an open item, oldest first."""
        key = keys.open_of_run(run_ref)
        return listed(await self._conn.command("ZRANGE", key, 0, -1))

    async def answered_of_run(self, keys: Keys, run_ref: RunRef) -> list[Listed]:
        """Return a run's latest approvals with an answer, oldest first."""
        key = keys.answered(run_ref)
        found = await self._conn.command("ZRANGE", key, 0, -1)
        return listed(found)

    async def with_short_id(self, keys: Keys, short: str) -> list[str]:
        """Return the ids of approvals and collected cards with this short id."""
        found = await self._conn.command("SMEMBERS", keys.short(short))
        return sorted(readable(found, text))


def listed(members: Reply | Iterable[bytes]) -> list[Listed]:
    """Parse the members of a run's lists; malformed ones are skipped."""
    return readable(members, Listed.read)


def _scored(reply: Reply) -> list[tuple[float, bytes]]:
    flat = cast("list[bytes]", reply or [])
    pairs = zip(flat[1::2], flat[::2], strict=True)
    return [(float(score), member) for score, member in pairs]
