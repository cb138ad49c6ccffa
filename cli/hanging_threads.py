"""End a process even if a tool or a model client hangs in one of its threads.

Threads cannot be stopped from outside, and both asyncio and the interpreter wait for
all threads when they end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

THREADS_END_S = 2.0
"""How long threads may take to end after everything is closed."""


def end_soon(code: int) -> None:
    """End this process with an exit code, even if a thread does not end.

    Everything is closed: later work of a thread would not be recorded anyway.
    """
    threading.Thread(target=_end, args=(code,), daemon=True).start()


def _end(code: int) -> None:
    time.sleep(THREADS_END_S)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
