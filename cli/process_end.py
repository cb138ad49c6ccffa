"""The end of a process: by a closed terminal, and despite a thread that hangs.

A supervisor sends SIGHUP to make a service reload its files, possibly right after the
process has started. A changed policy is read anyway, so only a closed terminal ends the
process.

A tool or a model client may hang in a thread. Threads cannot be stopped from outside,
and both asyncio and the interpreter wait for all threads when they end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress

_CONTROLLING_TERMINAL = "/dev/tty"


def end_only_with_terminal() -> None:
    """Let SIGHUP end this process only if its terminal was closed.

    The process then ends as at SIGTERM: a service closes its resources. Under nohup,
    which ignores SIGHUP, nothing changes.
    """
    had_terminal = has_terminal()

    def hung_up(_number: int, _frame: object) -> None:
        if had_terminal and not has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hung_up)


def has_terminal() -> bool:
    """Return True if this process has a terminal that is still open."""
    try:
        # `isatty` does not work for redirected streams. Opening the terminal fails once
        # it is closed. O_NOCTTY: it must not become this process's controlling
        # terminal.
        os.close(os.open(_CONTROLLING_TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


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
