"""Measure the server's loading time of a million pending approvals after a kill.

The same approval is written by this version and by commit 881def4, and both stores are
loaded alternately from files that the server has rewritten.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from bench import SECRETS
from bench.pending import (
    Command,
    agents_of,
    commands_of,
    earlier_commands,
    multiply,
    open_one,
)
from bench.stats import Figure, Measured, NotMeasured, ratio
from keyturn.gateway.store.connection.connection import Connection, number, text
from keyturn.gateway.store.open_store import open_store

TITLE = "Restart with many pending approvals"
MANY = 1_000_000


async def measure(*, is_quick: bool = False) -> Figure:
    """Load both alternately."""
    return await measured(*((2_000, 1) if is_quick else (MANY, 3)))


async def measured(count: int, rounds: int) -> Figure:
    """Load both stores with this many approvals in each round."""
    with TemporaryDirectory(prefix="tk-bench-") as folder:
        ours, theirs = Path(folder) / "ours", Path(folder) / "theirs"
        await _filled(theirs, earlier_commands(), count)
        await _filled(ours, await _commands(Path(folder) / "one"), count)
        pairs = [(await _loaded(ours), await _loaded(theirs)) for _ in range(rounds)]
    new = Measured("records of this version", "s", tuple((one,) for one, _ in pairs))
    old = Measured("records of 881def4", "s", tuple((one,) for _, one in pairs))
    return Figure(
        TITLE,
        f"{count:,} pending approvals of one call each, killed with SIGKILL; {rounds} "
        "rounds in turns.\nTimed from the server's start until it has loaded all.",
        (new, old),
        (ratio("records of this version / of 881def4", new, old, at_most=0.6),),
    )


async def _commands(folder: Path) -> list[Command]:
    async with open_store(None, folder, secrets=SECRETS) as store:
        await open_one(store, agents_of(store), 0)
        return await commands_of(store.conn)


async def _filled(folder: Path, commands: Sequence[Command], count: int) -> None:
    async with open_store(None, folder, secrets=SECRETS) as store:
        # Without the log of single writes, which the rewrite below replaces.
        await store.conn.command("CONFIG", "SET", "appendonly", "no")
        await multiply(store.conn, commands, count)
        await store.conn.command("CONFIG", "SET", "appendonly", "yes")
        # Polled, because the server sends no event.
        while await _info(store.conn, "persistence", "aof_rewrite_in_progress") != "0":  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def _loaded(folder: Path) -> float:
    began = time.perf_counter()
    async with open_store(None, folder, secrets=SECRETS) as store:
        taken = time.perf_counter() - began
        if not number(await store.conn.command("DBSIZE")):
            raise NotMeasured("Nothing was loaded.")
        pid = int(await _info(store.conn, "server", "process_id"))
        os.kill(pid, signal.SIGKILL)
    return taken


async def _info(conn: Connection, section: str, field: str) -> str:
    reply = await conn.command("INFO", section)
    if isinstance(reply, dict):
        return str(cast("dict[str, object]", reply)[field])
    lines = text(reply).splitlines()
    [found] = [line for line in lines if line.startswith(f"{field}:")]
    return found.removeprefix(f"{field}:")
