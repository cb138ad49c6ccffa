"""Record where a thread was halted, so that no job resumes it automatically.

A thread that reached a limit, or stopped at a breakpoint of a graph inside it, looks
in its checkpoint like one whose process died. This mark tells them apart: it names the
checkpoint, so it ends by itself when the thread moves on.
"""

from __future__ import annotations

from twokey.gateway.resume.classification import (
    AtBreakpoint,
    ThreadHalted,
    at_breakpoint,
    at_limit,
)
from twokey.gateway.resume.run_events import ThreadRef
from twokey.gateway.store.connection import text
from twokey.gateway.store.stalled import HALTED
from twokey.gateway.store.store import Store


class Halts:
    """Where the threads of a store were halted; the caller holds the thread's lease."""

    def __init__(self, store: Store) -> None:
        self._conn = store.conn

    async def put(self, at: ThreadRef, checkpoint: str, why: BaseException) -> None:
        """Mark that a thread was halted at this checkpoint."""
        mark = f"{checkpoint} {type(why).__name__}"
        # Kept: without the mark, a job would resume it by itself.
        await self._conn.keep(["HSET", _key(at), HALTED, mark])

    async def at(self, at: ThreadRef, checkpoint: str) -> ThreadHalted | None:
        """Return why a thread was halted at this checkpoint; None: it was not."""
        found = text(await self._conn.command("HGET", _key(at), HALTED))
        marked, _, why = found.partition(" ")
        # An empty id is tested first: it would equal a mark that was never put.
        if not checkpoint or marked != checkpoint:
            return None
        if why == AtBreakpoint.__name__:
            return at_breakpoint(at.thread, is_announced=True)
        return at_limit(at.thread, why)

    async def clear(self, at: ThreadRef) -> None:
        """Let a thread go on from where it was halted."""
        await self._conn.command("HDEL", _key(at), HALTED)


def _key(at: ThreadRef) -> str:
    return at.keys.thread_facts(at.tenant, at.agent, at.thread)
