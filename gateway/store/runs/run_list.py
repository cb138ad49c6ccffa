"""Read the lists of a run's approvals.

Open approvals have a separate list, so that a submission costs the same in a new run
and in a run with a hundred thousand earlier approvals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.connection.connection import Argument, Connection, Reply
from keyturn.gateway.store.connection.listed_members import readable
from keyturn.gateway.store.keys import LISTED_BYTES, Keys


@dataclass(frozen=True)
class Listed:
    """An approval in its run's list: its id, and its agent's namespace."""

    id: str
    ns: str


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
        commands: list[list[Argument]] = [
            ["ZRANGE", name, -newest, -1, "WITHSCORES"]
            for name in (keys.run(run_ref), keys.open_of(run_ref))
        ]
        # One MULTI: an approval that ends moves between the lists.
        each = await self._conn.transaction(*commands)
        found = [cast("list[bytes]", one) for one in each]
        rows = [row for one in found for row in zip(one[1::2], one[::2], strict=True)]
        rows.sort(key=lambda row: float(row[0]))
        return listed(keys, [member for _, member in rows[-newest:]])

    async def open_of_run(self, keys: Keys, run_ref: RunRef) -> list[Listed]:
        """Return a run's approvals with an open item, oldest first."""
        return await self._listed(keys, keys.open_of(run_ref))

    async def answered_of_run(self, keys: Keys, run_ref: RunRef) -> list[Listed]:
        """Return a run's latest approvals with an answer, oldest first."""
        return await self._listed(keys, keys.answered(run_ref))

    async def with_short_id(self, keys: Keys, short: str) -> list[str]:
        """Return the ids of approvals and collected cards with this short id."""
        found = cast("bytes", await self._conn.command("GET", keys.short(short)) or b"")
        members = {
            found[n : n + LISTED_BYTES] for n in range(0, len(found), LISTED_BYTES)
        }
        return sorted(readable([*members], keys.unlisted))

    async def _listed(self, keys: Keys, name: str) -> list[Listed]:
        return listed(keys, await self._conn.command("ZRANGE", name, 0, -1))


def listed(keys: Keys, members: Reply) -> list[Listed]:
    """Parse the members of a run's lists; malformed ones are skipped."""

    def read(member: bytes) -> Listed:
        approval, ns = member[:LISTED_BYTES], member[LISTED_BYTES:]
        return Listed(keys.unlisted(approval), ns.decode())

    return readable(members, read)
