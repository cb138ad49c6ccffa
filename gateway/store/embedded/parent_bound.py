"""Run a program that ends when its parent process ends.

Started as a script: ``python -I -S parent_bound.py PARENT_PID PROGRAM [ARG …]``. It
asks the kernel for a SIGKILL when its parent dies, and then becomes the program. It is
a separate script, because code between fork and exec of a threaded process is unsafe.

SIGKILL, not SIGTERM: a server in an orderly shutdown still answers for 100 ms. A
restarted Keyturn could adopt it in that time, and then fail. So acknowledged data of
the program must survive a kill.

The kernel watches the *thread* that started it (prctl(2), PR_SET_PDEATHSIG), so that
thread must live as long as the program. Other systems lack this signal: there, the next
start finds the orphaned program, and ends it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, program: list[str]) -> None:
    """Bind this process to its parent and become the program."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
        # If the parent died before prctl, no signal will come.
        if os.getppid() != parent:
            sys.exit("the parent ended before the program began")
    os.execv(program[0], program)  # noqa: S606 - a list of words, no shell


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
