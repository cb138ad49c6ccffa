"""Wait until somebody wants this process to stop."""

from __future__ import annotations

import asyncio
import signal


async def until_stopped() -> None:
    """Return at the first SIGINT or SIGTERM, so that everything can close in order."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
