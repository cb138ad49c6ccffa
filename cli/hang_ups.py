"""SIGHUP before a command handles it: only the end of the terminal ends the process.

A supervisor sends it to have a service read its files again, and may do so as soon as
the process is there. A service that still starts has yet to read them.
"""

from __future__ import annotations

import os
import signal

_CONTROLLING_TERMINAL = "/dev/tty"


def end_only_with_terminal() -> None:
    """Let SIGHUP end this process only where its terminal was closed.

    It then ends as at SIGTERM: a service closes what it has begun. Under nohup, which
    has SIGHUP ignored, nothing changes.
    """
    had_terminal = has_terminal()

    def hung_up(_number: int, _frame: object) -> None:
        if had_terminal and not has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hung_up)


def has_terminal() -> bool:
    """Return whether this process belongs to a terminal that is still there."""
    try:
        # `isatty` of a standard stream tells nothing when it is redirected. Opening the
        # terminal fails once it is closed. O_NOCTTY: it must not become ours.
        os.close(os.open(_CONTROLLING_TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
