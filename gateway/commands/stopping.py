"""Wait until somebody wants this process to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

_TERMINAL = "/dev/tty"


async def until_stopped(reload: Callable[[], None]) -> None:
    """Return at the first SIGINT or SIGTERM, so that everything can close in order.

    Args:
        reload: called at SIGHUP, by which operators ask a service to read its files
            again. It also says that a terminal was closed: then the process stops.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
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
    await stopped.wait()


def _has_terminal() -> bool:
    """Say whether this process belongs to a terminal that is still there."""
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
