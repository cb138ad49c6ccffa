"""Run one asynchronous core for synchronous and asynchronous agents.

Theory of operation: everything that talks to the gateway is written once, as
coroutines over a `Shell`. `Awaiting` really awaits. `Blocking` runs each port call on
one background event loop and waits for it, so that a coroutine over it never suspends
and `drive` can finish it without an event loop of its own. Heartbeats always live on
that background loop: a tool that blocks its own loop must not lose its claim.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from twokey.gateway.clock import now_s
from twokey.gateway.errors import FINAL_ERRORS, LeaseLost, StoreUnavailable, TwokeyError
from twokey.gateway.protocol import run_context
from twokey.gateway.protocol.idempotency import one_write
from twokey.gateway.uncancelled import begun, waited_for

PORT_TIMEOUT_S = 10.0
"""How long one question to the gateway may take before it counts as unreachable."""

PORT_TRIES = 4
FIRST_PAUSE_S = 0.1
"""How often, and with which growing pauses, a question is put that must get through."""

LONGEST_PAUSE_S = 2.0
HAND_BACK_S = 2.0
"""How long before the end of its lease a thread is handed back: with its error, which
says what was missing, and not cut off."""

T = TypeVar("T")


class Shell(Protocol):
    """How the core waits: for the gateway, and for time to pass."""

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask the gateway.

        Raises:
            StoreUnavailable: when there is no answer within `PORT_TIMEOUT_S`.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin what nobody waits for; it ends with the loop that it runs on."""
        ...


class Awaiting:
    """A shell for code that runs on an event loop."""

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await the answer on the caller's loop."""
        return await _in_time(question)

    async def sleep(self, seconds: float) -> None:
        """Yield to the loop meanwhile."""
        await asyncio.sleep(seconds)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin it on the caller's loop, whose end closes the store as well."""
        begun(work)


class Blocking:
    """A shell for code without an event loop; its coroutines never suspend."""

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Block this thread until the background loop has the answer."""
        return spawn(_in_time(question)).result()

    async def sleep(self, seconds: float) -> None:
        """Block this thread meanwhile."""
        time.sleep(seconds)  # noqa: ASYNC251 - to block is what this shell is for

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin it on the background loop."""
        spawn(_kept(work))


AWAITING, BLOCKING = Awaiting(), Blocking()
"""The shells: they keep nothing."""


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Finish a coroutine over a `Blocking` shell in this thread.

    Raises:
        RuntimeError: when the coroutine suspends, which is a programming error.
    """
    try:
        work.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    # So that what it has to clean up is done here, and not when it is collected.
    work.close()
    raise RuntimeError("A coroutine over a blocking shell suspended.")


def spawn(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the background loop of this process."""
    return asyncio.run_coroutine_threadsafe(work, _background.loop())


def call_later(delay_s: float, callback: Callable[[], None]) -> None:
    """Call a function on the background loop of this process after a while.

    It cannot be taken back: what is no longer wanted does nothing when it is called.
    """
    _background.call_later(delay_s, callback)


async def ask_with_retries(
    shell: Shell, question: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Ask the gateway a few times; a refusal is final at once.

    Raises:
        TwokeyError: the last one, when there was no answer.
    """
    return await _asked(shell, question, while_held=False)


async def ask_while_held(
    shell: Shell, question: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Ask as `ask_with_retries`, and one that cannot be reached for longer.

    It is asked for as long as the lease on the thread lives by the first attempt: until
    then, nobody else could go on with the thread.

    Raises:
        TwokeyError: the last one, when there was no answer.
    """
    return await _asked(shell, question, while_held=True)


async def _asked(
    shell: Shell, question: Callable[[], Coroutine[Any, Any, T]], *, while_held: bool
) -> T:
    pause, ends_s = FIRST_PAUSE_S, 0.0
    with one_write():
        for tries in itertools.count(1):
            try:
                return await shell.ask(question)
            # Another attempt would get the same answer: these are decisions, no
            # outages.
            except (*FINAL_ERRORS, LeaseLost):
                raise
            except TwokeyError as error:
                if tries == 1 and while_held and isinstance(error, StoreUnavailable):
                    left_s = run_context.lease_left_s()
                    ends_s = now_s() + max(0.0, left_s - HAND_BACK_S)
                if tries >= PORT_TRIES and now_s() + pause >= ends_s:
                    raise
            await shell.sleep(pause)
            pause = min(pause * 3, LONGEST_PAUSE_S)
    raise AssertionError("The last attempt returns or raises.")  # pragma: no cover


async def _kept(work: Coroutine[Any, Any, None]) -> None:
    # A loop itself keeps no task from being collected.
    await waited_for(begun(work))


async def _in_time(question: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        async with asyncio.timeout(PORT_TIMEOUT_S):
            return await question()
    # One error for both: callers must not have to know whether the gateway is in this
    # process or behind a socket.
    except (TimeoutError, OSError) as error:
        raise StoreUnavailable(
            "The approval gateway did not answer; try again when it is back."
        ) from error


class _Background:
    """One event loop in one daemon thread; made again in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._looks_at = math.inf

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # Threads do not survive a fork: in the child the loop's thread is missing.
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                self._due, self._looks_at = [], math.inf
                # A daemon: a heartbeat must not keep the program from ending.
                threading.Thread(
                    target=self._loop.run_forever, name="twokey-agent", daemon=True
                ).start()
            return self._loop

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """See `call_later`."""
        loop = self.loop()
        when = loop.time() + delay_s
        with self._lock:
            heapq.heappush(self._due, (when, next(self._count), callback))
            # Only for what is due before all else the thread is woken, which would take
            # the processor from the caller. Heartbeats are mostly due in their order.
            is_first = when < self._looks_at
            if is_first:
                self._looks_at = when
        if is_first:
            loop.call_soon_threadsafe(loop.call_at, when, self._look)

    def _look(self) -> None:
        """Call what is due (on the loop)."""
        now, found = self.loop().time(), list[Callable[[], None]]()
        with self._lock:
            while self._due and self._due[0][0] <= now:
                found.append(heapq.heappop(self._due)[2])
            self._looks_at = self._due[0][0] if self._due else math.inf
            looks_at = self._looks_at
        if looks_at < math.inf:
            self.loop().call_at(looks_at, self._look)
        for callback in found:
            callback()


_background = _Background()
