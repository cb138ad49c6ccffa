"""Check the lifetimes in a store: needed keys have none, ended ones have one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import cast

from keyturn.gateway.store.connection.connection import Connection, Reply, fields, text

PERMANENT = frozenset(
    {
        "x", "timers", "ev", "rs", "members", "au", "audit_tree", "retry",
        "frozen", "frozen_sealed", "undrawn", "fences", "stalled",
        "restore_counters", "standing", "sealed_by", "format",
        "api_keys", "installations", "definitions", "messages_due", "moved_channels",
    }
)  # fmt: skip
"""Last part of the keys that live as long as the store: indexes, streams, freezes."""

LONGEST_MS = int(timedelta(days=400).total_seconds() * 1000)
"""A lifetime beyond this is none: no test sets one."""

GONE = -2
"""What PTTL says of a key that has ended since it was listed."""

OPEN = {b"pending", b"authorized", b"executing", b"in_doubt", b"handing_over"}
_HEAD = re.compile(r"(?P<base>tk:\{[^}]+\}:)a:(?P<id>ap_[\w-]+)")


def is_permanent(key: str) -> bool:
    """Return whether a key may live without an expiry."""
    return key.rsplit(":", 1)[-1] in PERMANENT


async def wrong_lifetimes(conn: Connection) -> list[str]:
    """Return what would live for ever, and what would end while it is needed.

    This follows every test, so a few round trips ask for all keys.
    """
    names = [text(name) for name in listed(await conn.command("KEYS", "*"))]
    left = await _each(conn, [["PTTL", name] for name in names])
    lives = {
        name
        for name, ms in zip(names, left, strict=True)
        if ms != GONE and not 0 <= cast("int", ms) <= LONGEST_MS
    }
    needed = await _needed(
        conn, [one for name in names if (one := _HEAD.fullmatch(name))]
    )
    threads = [name for name in names if ":tm:" in name]
    runs = await _each(conn, [["HGET", name, "run"] for name in threads])
    needed |= {name for name, run in zip(threads, runs, strict=True) if run}
    # A run with open approvals keeps its lists, and the facts of its thread.
    kinds = (":open:", ":run:", ":tm:")
    opened = [name for name in names if ":open:" in name]
    needed |= {name.replace(":open:", kind) for name in opened for kind in kinds}
    leaked = [name for name in lives - needed if not is_permanent(name)]
    ending = needed & {*names} - lives
    return sorted(
        [f"{name} never ends" for name in leaked]
        + [f"{name} ends while it is needed" for name in ending]
    )


async def _each(conn: Connection, commands: list[list[str]]) -> list[Reply]:
    return await conn.transaction(*commands) if commands else []


async def _needed(conn: Connection, heads: list[re.Match[str]]) -> set[str]:
    """Return the keys that these approvals need."""
    rows = [
        ["HGETALL", key]
        for head in heads
        for key in (head[0], f"{head['base']}card:{head['id']}")
    ]
    found = [fields(reply) for reply in await _each(conn, rows)]
    needed = set[str]()
    for head, *two in zip(heads, found[::2], found[1::2], strict=True):
        needed |= _needed_by(head, *two)
    return needed


def _needed_by(
    head: re.Match[str], stored: Mapping[str, bytes], card: Mapping[str, bytes]
) -> set[str]:
    """Return the keys that an approval needs as long as an item of it is open."""
    base, approval = head["base"], head["id"]
    open_ = [
        field.removesuffix(":s")
        for field, value in stored.items()
        if field.endswith(":s") and value in OPEN
    ]
    if not open_:
        return set()
    found = {
        head[0],
        *(f"{base}{kind}:{approval}" for kind in ("p", "card", "seen_by")),
    }
    found |= {f"{base}{field}" for field in card if field.startswith("at:")}
    found.add(f"{base}short:{approval.rpartition('_')[2][:8]}")
    run = stored.get("run", b"")[:16].hex() or "-"
    turn = stored.get("turn", b"").hex() or "-"
    found |= {f"{base}{kind}:{run}" for kind in ("run", "open", "tm")}
    # What a pending item uses counts until after its deadline, however long it is kept.
    decided = [index for index in open_ if stored[f"{index}:s"] != b"pending"]
    return found | {f"{base}turn:{turn}"} | _windows(stored, decided)


def _windows(stored: Mapping[str, bytes], open_: list[str]) -> set[str]:
    found = set[str]()
    for index in open_:
        with suppress(ValueError, IndexError, TypeError):
            for row in json.loads(stored.get(f"{index}:w", b"[]")):
                found |= {row[0], f"{row[0]}:sum"}
    return found


def listed(reply: Reply) -> list[Reply]:
    """Return a reply that is a list."""
    assert isinstance(reply, list)
    return cast("list[Reply]", reply)


async def lose_records(conn: Connection) -> None:
    """Lose all that has a lifetime, as an operator or a bad disk may."""
    names = [text(name) for name in listed(await conn.command("KEYS", "*"))]
    lost = [name for name in names if not is_permanent(name)]
    if lost:
        await conn.command("DEL", *lost)
