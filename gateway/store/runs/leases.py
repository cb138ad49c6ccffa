"""Hold a lease while work is done, and stop the work when the lease is lost.

The leases are in the store (`keyturn.gateway.store.runs.threads`) or in a gateway in
another process; a function sends the requests. A repeated request has the same token
and is idempotent.

Heartbeats renew leases and deliveries. The background loop sends them even if an event
loop is blocked: blocking code must not end leases of the process, or of other calls
in the same loop. The log names the blocking code.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from keyturn.gateway import background
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import KeyturnError, LeaseLost, ThreadUnavailable
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.http_api import LeaseReply, LeaseVerb
from keyturn.gateway.store.scripts.fences import Lease, ending_in_time, holding

logger = logging.getLogger(__name__)

T = TypeVar("T")

Ask = Callable[[LeaseVerb, str, int], Awaitable[LeaseReply]]
"""Perform one step of a lease, given the verb, the holder's token and a minimum for a
new fence; see `LeaseQuestion`."""

BLOCKED_S = 2.0
"""Response time from which an event loop counts as blocked."""

_FRAMES = 6
"""Depth of the stack in the log, innermost call first."""


@asynccontextmanager
async def held(ask: Ask, *, ends_blocked: bool = False) -> AsyncGenerator[Lease]:
    """Hold a lease; it may end inside the block at any time.

    ``ends_blocked`` lets the lease expire while the event loop is blocked.

    Raises:
        ThreadUnavailable: when another process holds it.
        StoreUnavailable: when the lease service does not answer.
    """
    # A token for each acquisition, not for the process: after a lost lease, the process
    # must not pass for the earlier holder.
    token = secrets.token_hex(16)
    # Taken before the request, so that the lease ends here no later than there.
    asked_s = now_s()
    taken = await ask("take", token, 0)
    if taken.state != "held":
        raise ThreadUnavailable("Another process runs this thread right now.")

    async def renew(verb: LeaseVerb, above: int = 0) -> LeaseReply:
        asked_s = now_s()
        reply = await ask(verb, token, above)
        if reply.state != "held":
            lease.end()
        # No effect after `end`: an ended lease stays ended.
        lease.keep(asked_s + taken.lease_s)
        return reply

    async def renumber(_: Lease, above: int) -> int:
        reply = await renew("renumber", above)
        if reply.state != "held":
            raise LeaseLost
        return reply.fence

    async def keep() -> None:
        if lease.left_s:
            # Includes a revoked API key: the lease then ends by its time.
            with suppress(KeyturnError):
                await renew("keep")
            for beat in lease.beats:
                await beat()

    lease = Lease(
        taken.name,
        token,
        fence=taken.fence,
        ends_s=asked_s + taken.lease_s,
        renumber=renumber,
    )
    try:
        with ending_in_time(lease):
            # Stop heartbeats before the release: a later one would get "lost".
            async with beating(taken.lease_s / 3, keep, ends_blocked=ends_blocked):
                yield lease
    finally:
        # Skipped after its end: without a connection this would only wait.
        if lease.left_s:
            with suppress(KeyturnError):
                await ask("free", token, 0)
        # Also after a normal end: stops other tasks that wait for the lease.
        lease.end()


async def while_held(
    lease_of: AbstractAsyncContextManager[Lease], work: Callable[[], Awaitable[T]]
) -> T:
    """Take a lease and run ``work`` as its only holder.

    The writes of ``work`` are fenced (`keyturn.gateway.store.scripts.fences`). Stopping
    it is not enough, since a paused process may resume in the middle of a write.

    Raises:
        LeaseLost: when the lease was lost and the work was stopped. All state is in
            the store: read the thread and continue later.
    """
    async with lease_of as lease:
        # A task keeps the context of its creation, so only the work is fenced, not the
        # task that waits for it.
        with holding(lease), run_context.lasting(lambda: lease.left_s):
            running = asyncio.ensure_future(work())
        return await until_lost(lease, running)


async def until_lost(lease: Lease, running: asyncio.Future[T]) -> T:
    """Wait for work, and stop it when the lease is lost.

    Raises:
        LeaseLost: when the lease was lost and the work was stopped.
    """
    watching = asyncio.create_task(lease.lost.wait())
    either: set[asyncio.Future[Any]] = {running, watching}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        # Valid even if the lease was lost at this moment: the writes were fenced.
        if running.done():
            return running.result()
        raise LeaseLost
    finally:
        watching.cancel()
        running.cancel()
        # The lease is released after this block, so the work must have ended.
        await asyncio.gather(running, watching, return_exceptions=True)


class LoopWatch:
    """Detects a blocked event loop from the background loop, and logs its stack."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._asked_s = 0.0
        self._is_logged = False

    def is_blocked(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the loop has not answered since an earlier look."""
        if not self._asked_s:
            self._asked_s = now_s()
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._answer)
            return False
        blocked_s = now_s() - self._asked_s
        if blocked_s < BLOCKED_S:
            return False
        if not self._is_logged:
            self._is_logged = True
            logger.warning(
                "loop.blocked seconds=%.0f by=%s", blocked_s, stack_of(self._thread)
            )
        return True

    def _answer(self) -> None:
        self._asked_s, self._is_logged = 0.0, False


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch] = WeakKeyDictionary()


def stack_of(thread: int) -> str:
    """Return a thread's stack, innermost call first."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the documented way
    found = [*traceback.extract_stack(frame, _FRAMES)] if frame else []
    return " < ".join(
        f"{one.name} ({one.filename}:{one.lineno})" for one in reversed(found)
    )


@asynccontextmanager
async def beating(
    every_s: float,
    beat: Callable[[], Coroutine[Any, Any, object]],
    *,
    ends_blocked: bool = False,
) -> AsyncGenerator[None]:
    """Send heartbeats while the block runs.

    Args:
        every_s: pause before the first heartbeat and between heartbeats.
        beat: sends one heartbeat, on the background loop.
        ends_blocked: skip heartbeats while the event loop of the block is blocked, so
            that another process can take over.
    """
    loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()
    watch = _watches.setdefault(loop, LoopWatch())

    async def beats() -> None:
        while True:
            await asyncio.sleep(every_s)
            if watch.is_blocked(loop) and ends_blocked:
                continue
            # A failed heartbeat ends nothing: leases and deliveries end by their own
            # clock.
            with suppress(Exception):
                await beat()

    async def start() -> None:
        # In the context of the block: a heartbeat over HTTP needs its lease.
        tasks.append(asyncio.create_task(beats()))

    async def stop() -> None:
        tasks[0].cancel()
        # Not `await`: its cancellation would look like this coroutine's.
        await asyncio.wait(tasks)

    background.spawn(start())
    try:
        yield
    finally:
        await asyncio.wait([asyncio.wrap_future(background.spawn(stop()))])
