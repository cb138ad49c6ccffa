"""Start a program whose clock a test moves while it runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.clock import faketime


class MovedClock:
    """The clock of one process, ahead of the real one by the offset in its file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.move(0)

    def move(self, ahead_s: int) -> None:
        """Set the offset to the real time, in seconds."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{ahead_s:+d}\n", encoding="utf-8")
        fresh.replace(self._file)

    def start(self, program: str, *words: str, env: Mapping[str, str]) -> Spawned:
        """Start what ``python -m PROGRAM WORDS`` runs; its clock is this one."""
        return Spawned(program, *words, env={**env, **faketime.variables(self._file)})


class Spawned:
    """A program in a separate process, with the methods of `Forked`.

    A library that moves a clock has to be loaded at the start of the process: a fork
    has the clock of its parent.
    """

    def __init__(self, program: str, *words: str, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, *words],
            env=dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        assert self._process.stdout
        self.stdout = self._process.stdout

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it, unless it has ended."""
        self._process.send_signal(number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return how.

        Raises:
            TimeoutError: it runs still.
        """
        try:
            ended = self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"Process {self.pid} runs still.") from error
        self.stdout.close()
        return ended
