"""Read the lists of a run's open and ended approvals.

The lists are separate, so that a submission costs the same in a new run and in a run
with a hundred thousand earlier approvals.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import cast

from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.connection.connection import Argument, Connection, Reply
from keyturn.gateway.store.connection.listed_members import readable
from keyturn.gateway.store.keys import LISTED_BYTES, Keys
from keyturn.gateway.store.scripts.script import Script

SHORT_IDS = Script("short_ids", writes=False)

_ROW = struct.Struct(">HI16sH")
"""An open approval in the list: six bytes of time, the id, length of its namespace."""

_DAYS = 400
"""Age limit for lookups by short id: most approvals end within a month."""


@dataclass(frozen=True)
class Listed:
    """An approval in its run's list: its id, and its agent's namespace."""

    id: str
    ns: str

    @classmethod
    def read(cls, keys: Keys, member: bytes) -> Listed:
        """Parse a member of a list: an approval, followed by the namespace."""
        approval, ns = member[:LISTED_BYTES], member[LISTED_BYTES:]
        return cls(keys.unlisted(approval), ns.decode())


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
        ended: list[Argument] = ["ZRANGE", keys.run(run_ref), -newest, -1]
        # One MULTI: an approval that ends moves between the lists.
        found, still_open = await self._conn.transaction(
            [*ended, "WITHSCORES"], _look(keys, run_ref)
        )
        rows = sorted([*_scored(found), *_open(still_open)])
        newest_rows = [member for _, member in rows[-newest:]]
        return listed(keys, newest_rows)

    async def open_of_run(self, keys: Keys, run_ref: RunRef) -> list[Listed]:
        """Return a run's approvals with an open item, oldest first."""
        found = await self._conn.command(*_look(keys, run_ref))
        rows = [member for _, member in _open(found)]
        return listed(keys, rows)

    async def answered_of_run(self, keys: Keys, run_ref: RunRef) -> list[Listed]:
        """Return a run's latest approvals with an answer, oldest first."""
        key = keys.answered(run_ref)
        found = await self._conn.command("ZRANGE", key, 0, -1)
        return listed(keys, found)

    async def with_short_id(self, keys: Keys, short: str) -> list[str]:
        """Return the ids of approvals and collected cards with this short id."""
        key = keys.short(short)
        _, found = await SHORT_IDS(
            self._conn, expiry=keys.expiry, key=key, short=short, days=_DAYS
        )
        return sorted({*readable(found, keys.unlisted)})


def listed(keys: Keys, members: Reply | Iterable[bytes]) -> list[Listed]:
    """Parse the members of a run's lists; malformed ones are skipped."""
    return readable(members, partial(Listed.read, keys))


def _look(keys: Keys, run_ref: RunRef) -> list[Argument]:
    """Return the command that reads the open approvals, for `_open`."""
    return ["HGET", keys.thread_facts(run_ref.agent, run_ref.thread), "open"]


def _open(reply: Reply) -> list[tuple[float, bytes]]:
    return open_rows(cast("bytes", reply or b""))


def open_rows(text: bytes) -> list[tuple[float, bytes]]:
    """Parse a run's list of open approvals: time of creation, and member.

    See ``open_in`` in `lifetimes.lua`.
    """
    found, at = list[tuple[float, bytes]](), 0
    while at + _ROW.size <= len(text):
        high, low, approval, size = _ROW.unpack_from(text, at)
        at += _ROW.size + size
        ns = text[at - size : at]
        found.append(((high << 32) + low, cast("bytes", approval) + ns))
    return found


def _scored(reply: Reply) -> list[tuple[float, bytes]]:
    flat = cast("list[bytes]", reply or [])
    pairs = zip(flat[1::2], flat[::2], strict=True)
    return [(float(score), member) for score, member in pairs]
