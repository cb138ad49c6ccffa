"""Notify waiters when an event says that their LangGraph thread may have changed.

A wait may last for days, so it costs no polling: this process's worker tells of its
own threads, and one blocking read of the outbox, shared by all who wait, tells of
those that another process advances. The outbox is read beside its readers'
groups; nothing is acknowledged here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.resume.transient_retry import retry_transient
from twokey.gateway.resume.worker import ThreadChange
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.outbox import Outbox
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

BLOCK_MS = 5000
"""How long one read waits for an event; less than a connection's time-out."""
LOOK_S = 60.0
"""After how long without a change a thread is read all the same: an event can be lost
when the outbox is trimmed or the store is restored."""
SOON_S = 1.0
"""After how long a thread is looked at once more after each change: an event can come
before what it announces is done, as when a thread is deleted."""
PAUSE_S = 1.0
"""How long to wait before a store that did not answer is read again."""

ThreadChanges = asyncio.Queue[ThreadChange]


class ThreadWatch:
    """The waiters of this process for threads of the shards of a tenant."""

    def __init__(self, store: Store, *shards: Keys) -> None:
        self._outboxes = [store.outbox(keys, reader="") for keys in shards]
        self._waiting: dict[tuple[str, str], set[ThreadChanges]] = {}
        self._follower: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def notify(self, change: ThreadChange) -> None:
        """Wake who waits for a thread; an error ends their wait."""
        for queue in self._waiting.get((change.agent, change.thread), ()):
            queue.put_nowait(change)

    @asynccontextmanager
    async def of(self, agent: str, thread: str) -> AsyncGenerator[ThreadChanges]:
        """Give a queue that gets something after each change, from now on.

        Read the thread after this was entered, or a change in between is missed.
        """
        queue: ThreadChanges = asyncio.Queue()
        key = (agent, thread)
        self._waiting.setdefault(key, set()).add(queue)
        try:
            await self._follow()
            yield queue
        finally:
            self._waiting[key].discard(queue)
            if not self._waiting[key]:
                del self._waiting[key]
            if not self._waiting:
                await self.close()

    async def close(self) -> None:
        """Stop reading."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            # Not `await follower`: the caller's own cancellation would look like its.
            await asyncio.wait([follower])

    async def _follow(self) -> None:
        # Waiters that begin at once share one reader.
        async with self._lock:
            if self._follower is None or self._follower.done():
                # The place is read before the caller reads its thread.
                places = [
                    (one, await retry_transient(one.newest)) for one in self._outboxes
                ]
                self._follower = asyncio.create_task(self._read_all(places))

    async def _read_all(self, places: Sequence[tuple[Outbox, str]]) -> None:
        # None of them ends, and the cancellation of this one is that of each.
        await asyncio.gather(*(self._read(outbox, after) for outbox, after in places))

    async def _read(self, outbox: Outbox, after: str) -> None:
        while True:
            try:
                events, after = await outbox.tail(after, block_ms=BLOCK_MS)
            except StoreUnavailable as error:
                # `after` stays: nothing is skipped while the store is away.
                logger.warning("threads.not_followed error=%s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            for event in events:
                self.notify(ThreadChange(event.agent, event.thread))
                if event.nested_in is not None:
                    self.notify(
                        ThreadChange(event.nested_in.agent, event.nested_in.thread)
                    )


async def next_change(
    changes: ThreadChanges, *, within_s: float = LOOK_S
) -> ThreadChange | None:
    """Wait until a thread may have moved; None when nothing was heard in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            return await changes.get()
    return None
