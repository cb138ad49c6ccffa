"""Count the data in a store, by kind of key, and the resources of a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from keyturn.gateway.store.connection.connection import (
    Argument,
    Connection,
    fields,
    number,
    text,
)
from tests.lifetimes import listed
from tests.soak.growth import kind_of

_COUNT = {
    "hash": ("HLEN", "EXISTS"),
    "zset": ("ZCARD", "EXISTS"),
    "set": ("SCARD", "EXISTS"),
    "list": ("LLEN", "EXISTS"),
    "stream": ("XLEN", "XINFO GROUPS"),
}
"""Which commands count what a key of a type holds, and tell who reads it."""

_PAGE = 500


async def lifetimes(conn: Connection) -> list[tuple[str, int]]:
    """Return each key and how many milliseconds it has left; below 0 for no end."""
    names = [text(name) for name in listed(await conn.command("KEYS", "*"))]
    rows: list[tuple[str, int]] = []
    for at in range(0, len(names), _PAGE):
        part = names[at : at + _PAGE]
        left = await conn.transaction(*(["PTTL", name] for name in part))
        rows += zip(part, cast("list[int]", left), strict=True)
    return rows


async def contents(conn: Connection, names: Sequence[str]) -> Counter[str]:
    """Return how many members the keys of each kind have, and how many kB."""
    found, size = Counter[str](), Counter[str]()
    for at in range(0, len(names), _PAGE):
        part = names[at : at + _PAGE]
        types = await conn.transaction(*(["TYPE", name] for name in part))
        asked: list[list[Argument]] = []
        for name, type_ in zip(part, types, strict=True):
            # A string counts as one.
            count, who_reads = _COUNT.get(text(type_), ("EXISTS", "EXISTS"))
            asked.append([*count.split(), name])
            asked.append([*who_reads.split(), name])
            asked.append(["MEMORY", "USAGE", name, "SAMPLES", 20])
        replies = await conn.transaction(*asked)
        for at_reply, name in enumerate(part):
            members, readers, used = replies[3 * at_reply : 3 * at_reply + 3]
            kind = kind_of(name)
            found[f"members of {kind}"] += number(members)
            # What ended since it was listed takes none.
            size[kind] += number(used or 0)
            # A number where it is no stream, and it has no readers.
            for group in [] if isinstance(readers, int) else listed(readers):
                facts = fields(group)
                found[f"readers of {kind}"] += number(facts["consumers"])
                found[f"unacknowledged of {kind}"] += number(facts["pending"])
    for kind, held in size.items():
        found[f"kB of {kind}"] = held // 1024
    return found


def resident_kb(pid: int | None) -> int:
    """Return how much memory a process has; 0 when it is being started again."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def open_files(pid: int | None) -> int:
    """Return how many files and sockets a process has open."""
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0
