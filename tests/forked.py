"""Run programs as forks of a process that has already imported the product.

The imports of the product and its libraries take seconds of processor time, which is
most of the time of a short story. A fork is still a separate process, with separate
memory, files and signals, and dies of kill -9 alone.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.preloaded"])

# Two threads that see a process end at the same time would both read its exit code.
_ONE_READS = threading.Lock()


class Forked:
    """What ``python -m PROGRAM WORDS`` would run, started without importing anew.

    ``stdout`` gives its standard output, with its errors where these are `merged`.
    The first start in a process of tests waits for the imports: take a thread for it
    where something else must go on.
    """

    def __init__(
        self,
        program: str,
        *words: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        merged: bool = False,
    ) -> None:
        told, tells = FORKS.Pipe(duplex=False)
        place = str(cwd or Path.cwd())
        variables = dict(os.environ if env is None else env)
        self._process = FORKS.Process(
            target=_run, args=(program, words, place, variables, tells, merged),
            daemon=True,
        )  # fmt: skip
        with _ONE_READS:
            self._process.start()
        tells.close()
        self.stdout = os.fdopen(os.dup(told.fileno()), encoding="utf-8")
        told.close()

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        assert self._process.pid
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return how it ended, as `subprocess` has it; None while it runs."""
        with _ONE_READS:
            return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return how.

        Raises:
            TimeoutError: it runs still.
        """
        wait([self._process.sentinel], timeout)
        ended = self.returncode
        if ended is None:
            raise TimeoutError(f"Process {self.pid} runs still after {timeout} s.")
        self.stdout.close()
        return ended


def _run(
    program: str,
    words: tuple[str, ...],
    place: str,
    variables: dict[str, str],
    tells: Connection,
    merged: bool,  # noqa: FBT001 - processes take positional arguments
) -> None:
    """Become the program, in the new process."""
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    os.chdir(place)
    os.dup2(tells.fileno(), 1)
    if merged:
        os.dup2(tells.fileno(), 2)
    tells.close()
    # A line at a time: a reader waits for it.
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv = [program, *words]
    runpy.run_module(program, run_name="__main__", alter_sys=True)
