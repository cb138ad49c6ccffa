"""Run a service until SIGINT or SIGTERM.

A running tool gets time to end. After the first Ctrl+C the terminal shows what the
process waits for, and a second Ctrl+C ends it immediately.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from keyturn.cli.console import good, printable
from keyturn.gateway.background import GRACE_S
from keyturn.gateway.garbage_collection import spare_what_is_there
from keyturn.gateway.store.store import Store

_POLL_S = 1.0
_NAMED = 3
"""How many threads of agents are listed; the others are counted."""


def serve(main: Coroutine[Any, Any, None]) -> None:
    """Run a service until it has closed everything.

    At SIGTERM, a service that is still starting closes what it has opened: its workers
    may already run tools. A second SIGTERM ends it immediately.
    """
    asyncio.run(_without_threads(main))


async def _without_threads(main: Coroutine[Any, Any, None]) -> None:
    starting = _Starting(asyncio.current_task())
    # Not an event loop handler: importing an agent may block the loop.
    before = signal.signal(signal.SIGTERM, starting.stop)
    try:
        await main
    except asyncio.CancelledError:
        if not starting.is_stopped:
            raise
    finally:
        _leave_threads()
        if signal.getsignal(signal.SIGTERM) == starting.stop:
            signal.signal(signal.SIGTERM, before)


class _Starting:
    """A service that does not handle signals yet."""

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        assert task is not None  # noqa: S101 - it runs in one
        self._task, self._loop = task, task.get_loop()
        self.is_stopped = False

    def stop(self, _number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.is_stopped = True
        self._loop.call_soon_threadsafe(self._task.cancel)


async def until_stopped(
    store: Store | None = None, *, ready: Callable[[], object] = lambda: None
) -> None:
    """Return at the first SIGINT or SIGTERM, so that everything can close in order.

    The second SIGINT ends the process, even while it closes.

    Args:
        store: stops the process when it has failed for good.
        ready: called once the signal handlers are installed. A program that was started
            in the background ignores SIGINT until then.

    Raises:
        StoreUnavailable: when the embedded server died again and again.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # By the loop, not `signal.signal`: a handler that runs between two instructions
        # must not touch an asyncio.Event.
        loop.add_signal_handler(number, stopped.set)

    def interrupted(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        said = _stopping(store.threads.at_work if store else ())
        with suppress(OSError):
            # Not `print`, which may be the interrupted call.
            os.write(2, said.encode())

    # In addition to the loop's handler, which still runs: this one also works while a
    # tool blocks the loop.
    signal.signal(signal.SIGINT, interrupted)
    # After the handlers are set: a script may wait for this line and then immediately
    # send SIGINT.
    ready()
    try:
        # Polled each second: no event is set when the embedded server fails for good.
        while not stopped.is_set():
            if store is not None and store.failure is not None:
                raise store.failure
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await stopped.wait()
    finally:
        _leave_threads()


async def run_until_stopped(store: Store, *lines: str, api_url: str = "") -> None:
    """Run this process until it is stopped, like `until_stopped`; first print lines.

    Args:
        store: store of the service.
        lines: sentences about the running service.
        api_url: address of the HTTP API; "" for none.
    """
    spare_what_is_there()
    if api_url:
        lines += (f"Agents in other processes reach it at {api_url}.",)
    # Printed only once signals are handled: a script may wait for these lines and then
    # stop the process immediately.
    await until_stopped(store, ready=lambda: [*map(good, lines)])


def _leave_threads() -> None:
    """Stop waiting for the event loop's threads from here on.

    The new executor also works if tools hang in all threads of the old one.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


def _stopping(at_work: Collection[tuple[str, str]]) -> str:
    """Return the message for the first Ctrl+C."""
    if not at_work:
        return "\nStopping. Ctrl+C again ends it at once.\n"
    named = [printable(f"{agent} {thread}") for agent, thread in sorted(at_work)]
    rest = len(named) - _NAMED
    listed = ", ".join(named[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return (
        f"\nStopping. Waiting {GRACE_S:.0f} s at most for agents at work: {listed}. "
        "Ctrl+C again ends it at once; a call that runs then may be in doubt.\n"
    )
