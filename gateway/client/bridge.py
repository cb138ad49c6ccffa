"""Run one asynchronous core for synchronous and asynchronous agents.

All code that calls the gateway is written once, as coroutines over a `Shell`.
`Awaiting` awaits on the caller's event loop. `Blocking` runs each call on one
background event loop and waits for it, so a coroutine over it never suspends, and
`drive` can finish it without an event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from keyturn.gateway.background import begun, spawn, waited_for
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    FINAL_ERRORS,
    KeyRefused,
    KeyturnError,
    LeaseLost,
    StoreUnavailable,
    ThreadUnavailable,
)
from keyturn.gateway.protocol import run_context

PORT_TIMEOUT_S = 10.0
"""How long one request to the gateway may take before it counts as unreachable."""

PORT_TRIES = 4
FIRST_PAUSE_S = 0.1
"""How often a request that must succeed is sent, and the first of the growing pauses.
"""

FIRST_LATE_PAUSE_S, LONGEST_LATE_PAUSE_S = 0.5, 5.0
ASK_LATE_FOR_S = 3600.0
"""How long a background task asks; people can resolve its subject at any time."""

T = TypeVar("T")


class Awaiting:
    """A shell for code that runs on an event loop."""

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Send a request to the gateway and await the answer on the caller's loop.

        Raises:
            StoreUnavailable: when there is no answer within `PORT_TIMEOUT_S`.
        """
        return await _in_time(question)

    async def sleep(self, seconds: float) -> None:
        """Sleep, and yield to the loop."""
        await asyncio.sleep(seconds)

    async def outliving_lease(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work; the end of the lease on its thread does not cancel it."""
        task = begun(work)
        try:
            return await waited_for(task)
        except asyncio.CancelledError:
            if run_context.has_lost_lease():
                raise
            # Another cause cancels the run, and the work with it.
            task.cancel()
            return await waited_for(task)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start background work on the caller's loop; it ends with that loop.

        The end of the loop closes the store as well.
        """
        begun(work)


class Blocking:
    """A shell for code without an event loop; its coroutines never suspend."""

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Send a request like `Awaiting.ask`; block this thread until the answer."""
        return spawn(_in_time(question)).result()

    async def sleep(self, seconds: float) -> None:
        """Sleep, and block this thread."""
        time.sleep(seconds)  # noqa: ASYNC251 - to block is what this shell is for

    async def outliving_lease(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work in this thread, which cannot be cancelled."""
        return await work

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start background work on the background loop."""
        spawn(_kept(work))


Shell: TypeAlias = Awaiting | Blocking
"""How the core waits for the gateway and sleeps."""

AWAITING, BLOCKING = Awaiting(), Blocking()
"""The shells have no state."""


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
    # Clean up here, not when the coroutine is garbage-collected.
    work.close()
    raise RuntimeError("A coroutine over a blocking shell suspended.")


async def ask_with_retries(
    shell: Shell, question: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Ask the gateway a few times; a refusal is not retried.

    A longer outage is for the caller: a thread that Keyturn runs is run again later.

    Raises:
        KeyturnError: the last error, when there was no answer.
    """
    pause = FIRST_PAUSE_S
    for _ in range(PORT_TRIES - 1):
        try:
            return await shell.ask(question)
        # Decisions, not outages: another attempt would get the same answer.
        except (*FINAL_ERRORS, LeaseLost):
            raise
        except KeyturnError:
            await shell.sleep(pause)
            pause *= 3
    return await shell.ask(question)


async def ask_or_wait(
    shell: Shell, question: Callable[[], Coroutine[Any, Any, T]], about: str
) -> T:
    """Ask like `ask_with_retries`; a thread waits out an outage.

    Raises:
        ThreadUnavailable: there was no answer about this call; nothing ran.
        KeyturnError: a refusal, or the loss of the thread's lease.
    """
    try:
        return await ask_with_retries(shell, question)
    except (*FINAL_ERRORS, LeaseLost):
        raise
    except KeyturnError as error:
        raise ThreadUnavailable(
            f"{error} So nothing ran for {about}; run the thread again when the "
            "gateway is back."
        ) from error


async def ask_until_answered(
    question: Callable[[], Coroutine[Any, Any, T]],
) -> T | None:
    """Ask the gateway in the background; None when it refuses, or after an hour.

    It pauses before each attempt.
    """
    pause, ends = FIRST_LATE_PAUSE_S, now_s() + ASK_LATE_FOR_S
    while now_s() < ends:
        await asyncio.sleep(pause)
        try:
            return await _in_time(question)
        except KeyturnError as error:
            if isinstance(error, FINAL_ERRORS) and not isinstance(error, KeyRefused):
                break
        pause = min(pause * 2, LONGEST_LATE_PAUSE_S)
    return None


async def _kept(work: Coroutine[Any, Any, None]) -> None:
    # An event loop keeps only weak references to its tasks.
    await waited_for(begun(work))


async def _in_time(question: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        async with asyncio.timeout(PORT_TIMEOUT_S):
            return await question()
    # One error for both, so that callers treat local and remote gateways alike.
    except (TimeoutError, OSError) as error:
        raise StoreUnavailable(
            "The approval gateway did not answer; try again when it is back."
        ) from error
