"""Read which approvals belong to a run: those that are open, and those that ended.

They stand apart, so that what an agent submits next is as cheap in a run with a
hundred thousand earlier approvals as in a new one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from twokey.gateway.protocol.records import RunRef
from twokey.gateway.store.connection import Argument, Reply
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.listed_members import ListedMembers
from twokey.gateway.store.script import Script
from twokey.gateway.store.turn_opening import Listed

SHORT_IDS = Script("short_ids", writes=False)

_ROW = struct.Struct(">HI16sH")
"""A row of what is open: six bytes of time, an id, and how long its namespace is."""

_DAYS = 400
"""How old an approval may be that its short id finds: most end within a month."""


async def of_run(
    members: ListedMembers, keys: Keys, tenant: str, run_ref: RunRef, *, newest: int
) -> list[Listed]:
    """Return a run's approvals, oldest first; ``newest`` at most, 0 for all."""
    ended: list[Argument] = ["ZRANGE", keys.run(tenant, run_ref), -newest, -1]
    # In one MULTI: an approval that ends moves from one to the other.
    found, *still_open = await members.conn.transaction(
        [*ended, "WITHSCORES"], *_looks(keys, tenant, run_ref)
    )
    rows = sorted([*_scored(found), *_open(still_open)])
    newest_rows = [member for _, member in rows[-newest:]]
    return await _listed(members, keys, tenant, run_ref, newest_rows)


async def open_of_run(
    members: ListedMembers, keys: Keys, tenant: str, run_ref: RunRef
) -> list[Listed]:
    """Return a run's approvals in which an item is open, oldest first."""
    found = await members.conn.transaction(*_looks(keys, tenant, run_ref))
    rows = [member for _, member in _open(found)]
    return await _listed(members, keys, tenant, run_ref, rows)


async def answered_of_run(
    members: ListedMembers, keys: Keys, tenant: str, run_ref: RunRef
) -> list[Listed]:
    """Return a run's newest approvals that people answered, oldest first."""
    key = keys.answered(tenant, run_ref)
    found = await members.conn.command("ZRANGE", key, 0, -1)
    return await _listed(members, keys, tenant, run_ref, cast("list[bytes]", found))


async def with_short_id(members: ListedMembers, keys: Keys, short: str) -> list[str]:
    """Return the ids of approvals and collected cards with this short id."""
    key = keys.short(short)
    _, found = await SHORT_IDS(
        members.conn, expiry=keys.expiry, key=key, short=short, days=_DAYS
    )
    return sorted({*await members.read(keys, key, found, keys.unlisted)})


async def _listed(
    members: ListedMembers,
    keys: Keys,
    tenant: str,
    run_ref: RunRef,
    rows: Iterable[bytes] | None,
) -> list[Listed]:
    """Read the members of a run's lists."""
    name = keys.run(tenant, run_ref)
    read = partial(Listed.read, keys)
    return await members.read(keys, name, rows, read, tenant=tenant)


def listed(keys: Keys, reply: Reply) -> list[Listed]:
    """Read what a run has open, as a script returned it; junk is left out."""
    found = list[Listed]()
    for member in cast("list[bytes]", reply or []):
        # Who reads the run next reports it.
        with suppress(ValueError):
            found.append(Listed.read(keys, member))
    return found


def _looks(keys: Keys, tenant: str, run_ref: RunRef) -> list[list[Argument]]:
    """Return the commands that read what is open, for `_open`."""
    facts = keys.thread_facts(tenant, run_ref.agent, run_ref.thread)
    return [
        # Until format 13.
        ["ZRANGE", keys.open_of_run(tenant, run_ref), 0, -1, "WITHSCORES"],
        ["HGET", facts, "open"],
    ]


def _open(replies: Sequence[Reply]) -> list[tuple[float, bytes]]:
    before, text = replies
    return [*_scored(before), *open_rows(cast("bytes", text or b""))]


def open_rows(text: bytes) -> list[tuple[float, bytes]]:
    """Read what a run has open: when each was opened, and how it is listed.

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
