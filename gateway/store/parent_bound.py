"""Run a program that ends when its parent process ends.

Started as a script: ``python -I -S parent_bound.py PARENT_PID PROGRAM [ARG …]``. It
asks the kernel for a SIGKILL at the death of its parent and then becomes the program.
A script of its own, because code between fork and exec of a threaded process is unsafe.

SIGKILL and not SIGTERM: a server that shuts down in order still answers for 100 ms.
Keyturn, started again in that time, shared a server that then went away, and failed.
The program therefore has to keep what it acknowledged also when it is killed.

The kernel means the *thread* that started it (prctl(2), PR_SET_PDEATHSIG), so that
thread has to live as long as the program. Other systems than Linux have no such signal:
there the next start finds the program that outlived its parent, and ends it.
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
        # A parent that died before prctl was called sends no signal any more.
        if os.getppid() != parent:
            sys.exit("the parent ended before the program began")
    os.execv(program[0], program)  # noqa: S606 - a list of words, no shell


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
