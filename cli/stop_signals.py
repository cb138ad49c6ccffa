"""Wait for SIGINT or SIGTERM; reload on SIGHUP."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from twokey.gateway.store.store import Store

_CONTROLLING_TERMINAL = "/dev/tty"
_POLL_S = 1.0


async def until_stopped(
    reload: Callable[[], None],
    store: Store | None = None,
    *,
    ready: Callable[[], object] = lambda: None,
) -> None:
    """Return at the first SIGINT or SIGTERM, so that everything can close in order.

    Args:
        reload: called at SIGHUP, by which operators ask a service to read its files
            again. It also says that a terminal was closed: then the process stops.
        store: stops the process when it is not expected to come back.
        ready: called once signals are waited for. A program that was started in the
            background ignores SIGINT until then.

    Raises:
        StoreUnavailable: when the embedded server died again and again.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # By the loop and not `signal.signal`: a handler that runs between two
        # instructions must not touch an asyncio.Event.
        loop.add_signal_handler(number, stopped.set)
    # Started under nohup, a process outlives its terminal.
    ends_with_terminal = _has_terminal() and (
        signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    )

    def hung_up() -> None:
        if ends_with_terminal and not _has_terminal():
            stopped.set()
        else:
            reload()

    loop.add_signal_handler(signal.SIGHUP, hung_up)
    # After the handlers are set: a script may wait for this line and then send SIGINT
    # at once.
    ready()
    # Polled each second: no event is set when the embedded server is given up.
    while not stopped.is_set():
        if store is not None and store.failure is not None:
            raise store.failure
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                await stopped.wait()


def _has_terminal() -> bool:
    """Return whether this process belongs to a terminal that is still there."""
    try:
        # `isatty` of a standard stream tells nothing when it is redirected. Opening the
        # terminal fails once it is closed. O_NOCTTY: it must not become ours.
        os.close(os.open(_CONTROLLING_TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
