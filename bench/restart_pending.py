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
from functools import partial
from pathlib import Path
from typing import cast

from bench import SECRETS
from bench.pending import Command, commands_of, earlier_commands, multiply
from bench.stats import Figure, NotMeasured, result
from bench.world import durable_store, in_turns, open_one
from keyturn.gateway.store.connection.connection import Connection, number, text
from keyturn.gateway.store.store import open_store


async def measure(*, is_quick: bool = False) -> Figure:
    """Load both alternately."""
    count, rounds = (2_000, 1) if is_quick else (1_000_000, 3)
    async with durable_store() as (store, folder):
        await open_one(store, 0)
        commands = {"this version": await commands_of(store.conn)}
        commands["881def4"] = earlier_commands()
        for name, some in commands.items():
            await _filled(folder / name, some, count)
        ways = {
            f"records of {name}": partial(_loaded, folder / name) for name in commands
        }
        new, old = await in_turns(ways, rounds, unit="s", warms_up=False)
    return Figure(
        "Restart with many pending approvals",
        f"{count:,} pending approvals of one call each, killed with SIGKILL; {rounds} "
        "rounds in turns.\nTimed from the server's start until it has loaded all.",
        (new, old),
        (result("records of this version / of 881def4", new, old, at_most=0.6),),
    )


async def _filled(folder: Path, commands: Sequence[Command], count: int) -> None:
    async with open_store(None, folder, secrets=SECRETS) as store:
        # Without the log of single writes, which the rewrite below replaces.
        await store.conn.command("CONFIG", "SET", "appendonly", "no")
        await multiply(store.conn, commands, count)
        await store.conn.command("CONFIG", "SET", "appendonly", "yes")
        # Polled, because the server sends no event.
        while await _info(store.conn, "persistence", "aof_rewrite_in_progress") != "0":  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def _loaded(folder: Path, _: str) -> float:
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
