"""Record of where a thread was halted, so that no job brings it forward by itself.

A thread that reached a limit, or stopped at a breakpoint of a graph inside it, looks
in its checkpoint like one whose process died. This mark tells them apart: it names the
checkpoint, so it ends by itself when the thread moves on.
"""

from __future__ import annotations

from gateway.resume.announcing import Place
from gateway.resume.classification import (
    AtBreakpoint,
    ThreadHalted,
    at_breakpoint,
    at_limit,
)
from gateway.store.connection import text
from gateway.store.keys import RETENTION
from gateway.store.store import Store

_HALTED = "halted"
_KEEP_MS = int(RETENTION.total_seconds() * 1000)


class Halts:
    """Where the threads of a store were halted; the caller holds the thread's lease."""

    def __init__(self, store: Store) -> None:
        self._conn = store.conn

    async def put(self, at: Place, checkpoint: str, why: BaseException) -> None:
        """Mark that a thread was halted at this checkpoint."""
        key = at.keys.thread_facts(at.tenant, at.agent, at.thread)
        mark = f"{checkpoint} {type(why).__name__}"
        await self._conn.together(
            ["HSET", key, _HALTED, mark],
            ["PEXPIRE", key, _KEEP_MS],
        )

    async def at(self, at: Place, checkpoint: str) -> ThreadHalted | None:
        """Return why a thread was halted at this checkpoint; None: it was not."""
        key = at.keys.thread_facts(at.tenant, at.agent, at.thread)
        found = text(await self._conn.command("HGET", key, _HALTED))
        marked, _, why = found.partition(" ")
        if not checkpoint or marked != checkpoint:
            return None
        if why == AtBreakpoint.__name__:
            return at_breakpoint(at.thread, is_told=True)
        return at_limit(at.thread, why)
