"""Early SIGHUP handling: only a closed terminal ends the process.

A supervisor sends SIGHUP to make a service reload its files, possibly right after the
process has started. A changed policy is read anyway.
"""

from __future__ import annotations

import os
import signal

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
