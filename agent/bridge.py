"""Run one asynchronous core for synchronous and asynchronous agents.

Theory of operation: everything that talks to the gateway is written once, as
coroutines over a `Shell`. `Awaiting` really awaits. `Blocking` runs each port call on
one background event loop and waits for it, so that a coroutine over it never suspends
and `drive` can finish it without an event loop of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from keyturn.gateway.background import begun, spawn, waited_for
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    FINAL_ERRORS,
    KeyturnError,
    LeaseLost,
    StoreUnavailable,
)
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.run_context import one_write

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


class Awaiting:
    """A shell for code that runs on an event loop."""

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask the gateway, and await the answer on the caller's loop.

        Raises:
            StoreUnavailable: when there is no answer within `PORT_TIMEOUT_S`.
        """
        return await _in_time(question)

    async def sleep(self, seconds: float) -> None:
        """Let time pass, and yield to the loop meanwhile."""
        await asyncio.sleep(seconds)

    async def outliving_lease(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work; the end of the lease on its thread does not cancel it."""
        task = begun(work)
        try:
            return await waited_for(task)
        except asyncio.CancelledError:
            if run_context.has_lost_lease():
                raise
            # Somebody else cancels the run, and with it the work.
            task.cancel()
            return await waited_for(task)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin what nobody waits for on the caller's loop, and end with that loop.

        The end of the loop closes the store as well.
        """
        begun(work)


class Blocking:
    """A shell for code without an event loop; its coroutines never suspend."""

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask as `Awaiting.ask`; block this thread until there is an answer."""
        return spawn(_in_time(question)).result()

    async def sleep(self, seconds: float) -> None:
        """Let time pass, and block this thread meanwhile."""
        time.sleep(seconds)  # noqa: ASYNC251 - to block is what this shell is for

    async def outliving_lease(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work in this thread, which cannot be cancelled."""
        return await work

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin what nobody waits for on the background loop."""
        spawn(_kept(work))


Shell: TypeAlias = Awaiting | Blocking
"""How the core waits: for the gateway, and for time to pass."""

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


async def ask_with_retries(
    shell: Shell, question: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Ask the gateway a few times; a refusal is final at once.

    Raises:
        KeyturnError: the last one, when there was no answer.
    """
    return await _asked(shell, question, while_held=False)


async def ask_while_held(
    shell: Shell, question: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Ask as `ask_with_retries`, and one that cannot be reached for longer.

    It is asked for as long as the lease on the thread lives by the first attempt: until
    then, nobody else could go on with the thread.

    Raises:
        KeyturnError: the last one, when there was no answer.
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
            except KeyturnError as error:
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
