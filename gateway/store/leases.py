"""Take a lease, keep it while work is done under it, and stop the work when it is lost.

Who keeps the lease is asked by a function: the store (`LeaseStore`), or a gateway in
another process. A repeated question has the same token, and is the same question.

Heartbeats keep leases and deliveries. They are sent from the background loop, also
while an event loop is blocked: code that blocks it must not end the leases of the
process, nor those of calls that merely share it. What blocks the loop is logged.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from keyturn.gateway import background
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    KeyturnError,
    LeaseLost,
    NotAllowed,
    ThreadUnavailable,
)
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.http_api import LeaseReply, LeaseState, LeaseVerb
from keyturn.gateway.store.connection import Connection, number, text
from keyturn.gateway.store.fences import Lease, ending_in_time, holding
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.script import Script

logger = logging.getLogger(__name__)

T = TypeVar("T")

Ask = Callable[[LeaseVerb, str, int], Awaitable[LeaseReply]]
"""Does a step of one lease, given the verb, the holder's token and a fence to rise
above; see `LeaseQuestion`."""

TAKE_LEASE = Script("lease")

REACH = 1_000_000
"""How far above the newest fence a holder in another process may rise: one that rises
at will uses up the fences of all agents of the tenant."""

BLOCKED_S = 2.0
"""How late an event loop may answer before it counts as blocked."""

_FRAMES = 6
"""How many calls of a blocked loop's stack are logged, the innermost first."""


@asynccontextmanager
async def held(ask: Ask, *, ends_blocked: bool = False) -> AsyncGenerator[Lease]:
    """Hold a lease; it may end inside the block at any time.

    ``ends_blocked`` lets it end while the event loop is blocked.

    Raises:
        ThreadUnavailable: when another holds it.
        StoreUnavailable: when who keeps it does not answer.
    """
    # A token for each taking, not for the process: one that lost the lease and took it
    # again must not pass for the holder that it was before.
    token = secrets.token_hex(16)
    # Read before the question is sent, so that it is over here no later than there.
    asked_s = now_s()
    taken = await ask("take", token, 0)
    if taken.state != "held":
        raise ThreadUnavailable("Another process runs this thread right now.")

    async def renew(verb: LeaseVerb, above: int = 0) -> LeaseReply:
        asked_s = now_s()
        reply = await ask(verb, token, above)
        if reply.state != "held":
            lease.end()
        # After `end` this does nothing: a lease that has ended does not come back.
        lease.keep(asked_s + taken.lease_s)
        return reply

    async def renumber(_: Lease, above: int) -> int:
        reply = await renew("renumber", above)
        if reply.state != "held":
            raise LeaseLost
        return reply.fence

    async def keep() -> None:
        if lease.left_s:
            # Also when an API key was revoked: then the lease ends by its time.
            with suppress(KeyturnError):
                await renew("keep")

    lease = Lease(
        taken.name,
        token,
        fence=taken.fence,
        ends_s=asked_s + taken.lease_s,
        renumber=renumber,
    )
    try:
        with ending_in_time(lease):
            # Before the lease is freed: a heartbeat after it would be answered "lost".
            async with beating(taken.lease_s / 3, keep, ends_blocked=ends_blocked):
                yield lease
    finally:
        # Not after its end: cut off from who keeps it, nobody should wait for it.
        if lease.left_s:
            with suppress(KeyturnError):
                await ask("free", token, 0)
        # Also after a normal end: another task may still wait for it and has to stop.
        lease.end()


async def while_held(
    lease_of: AbstractAsyncContextManager[Lease], work: Callable[[], Awaitable[T]]
) -> T:
    """Take a lease and run ``work`` as its only holder.

    What ``work`` writes is fenced (`keyturn.gateway.store.fences`): stopping it is not
    enough, since a process that was paused may be in the middle of a write when it goes
    on.

    Raises:
        LeaseLost: when the lease was lost and the work was stopped. Nothing is lost:
            read the thread and go on later.
    """
    async with lease_of as lease:
        # A task keeps the context it was made in, so only the work is fenced, and not
        # what waits for it.
        with holding(lease), run_context.lasting(lambda: lease.left_s):
            running = asyncio.ensure_future(work())
        watching = asyncio.create_task(lease.lost.wait())
        try:
            await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
            # Also when the lease was lost at the same moment: what the work wrote was
            # fenced.
            if running.done():
                return running.result()
            raise LeaseLost
        finally:
            watching.cancel()
            running.cancel()
            # The lease is given back after this block; nothing may run under it then.
            await asyncio.gather(running, watching, return_exceptions=True)


class LeaseStore:
    """Leases on names of one tenant; one holder at a time for each name.

    Args:
        conn: the store.
        lease_ms: how long a lease lives without a heartbeat.
    """

    def __init__(self, conn: Connection, *, lease_ms: int) -> None:
        self._conn = conn
        self._lease_ms = lease_ms

    def held(
        self, keys: Keys, name: str, *, ends_blocked: bool = False
    ) -> AbstractAsyncContextManager[Lease]:
        """Hold a lease; see `held`."""

        async def ask(verb: LeaseVerb, token: str, above: int) -> LeaseReply:
            return await self.step(keys, name, verb, token, above)

        return held(ask, ends_blocked=ends_blocked)

    async def step(
        self,
        keys: Keys,
        name: str,
        verb: LeaseVerb,
        token: str,
        above: int = 0,
        *,
        reach: int = 0,
    ) -> LeaseReply:
        """Take, keep, renumber or give back a lease; see `LeaseQuestion`.

        ``reach`` is how far ``above`` may be above the newest fence; 0 for any.

        Raises:
            NotAllowed: ``above`` is out of reach; nothing changed.
        """
        reply = await TAKE_LEASE(
            self._conn,
            lease=name,
            fences=keys.fences,
            verb=verb,
            token=token,
            ttl_ms=self._lease_ms,
            above=above,
            reach=reach,
        )
        state = text(reply[0])
        if state == "too_high":
            raise NotAllowed(
                f"'above' is more than {reach} above the newest fence of this gateway; "
                "run the thread in the gateway's own process once."
            )
        return LeaseReply(
            state=cast("LeaseState", state),
            fence=number(reply[1]) if state == "held" else 0,
            name=name,
            lease_s=self._lease_ms / 1000,
        )


class _LoopWatch:
    """Notice on the background loop that an event loop is blocked, and log by what."""

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


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWatch] = WeakKeyDictionary()


def stack_of(thread: int) -> str:
    """Return what a thread runs, the innermost call first."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the documented way
    found = [*traceback.extract_stack(frame, _FRAMES)] if frame else []
    return " < ".join(
        f"{one.name} ({one.filename}:{one.lineno})" for one in reversed(found)
    )


class _Beats:
    def __init__(
        self,
        every_s: float,
        beat: Callable[[], Coroutine[Any, Any, None]],
        *,
        ends_blocked: bool,
    ) -> None:
        self._every_s, self._beat, self._ends_blocked = every_s, beat, ends_blocked
        self._loop = asyncio.get_running_loop()
        self._watch = _watches.setdefault(self._loop, _LoopWatch())
        # A heartbeat over HTTP names the lease of this context.
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False
        background.call_later(every_s, self._send)

    async def stop(self) -> None:
        """Send no more; what is being sent has ended when this returns."""
        with self._lock:
            self._is_over = True
            sending = self._sending
        if sending is not None:
            await asyncio.wait(
                [asyncio.wrap_future(background.spawn(_cancelled(sending)))]
            )

    def _send(self) -> None:
        is_blocked = self._watch.is_blocked(self._loop)
        with self._lock:
            if self._is_over:
                return
            if not (is_blocked and self._ends_blocked):
                loop = asyncio.get_running_loop()
                self._sending = loop.create_task(self._beat(), context=self._context)
                self._sending.add_done_callback(self._sent)
                return
        background.call_later(self._every_s, self._send)

    def _sent(self, sending: asyncio.Task[None]) -> None:
        if not sending.cancelled():
            # Read, or asyncio would report it. It ends nothing: what is kept alive ends
            # by its own clock.
            sending.exception()
        with self._lock:
            self._sending = None
            if self._is_over:
                return
        background.call_later(self._every_s, self._send)


async def _cancelled(sending: asyncio.Task[None]) -> None:
    sending.cancel()
    # Not `await sending`: its cancellation would look like that of the caller.
    await asyncio.wait([sending])


@asynccontextmanager
async def beating(
    every_s: float,
    beat: Callable[[], Coroutine[Any, Any, None]],
    *,
    ends_blocked: bool = False,
) -> AsyncGenerator[None]:
    """Send a heartbeat again and again while the block runs.

    Args:
        every_s: how long after the beginning, and after the end of the one before.
        beat: sends one, on the background loop.
        ends_blocked: send none while the event loop of the block is blocked, so that
            another process can take the work over.
    """
    beats = _Beats(every_s, beat, ends_blocked=ends_blocked)
    try:
        yield
    finally:
        await beats.stop()
