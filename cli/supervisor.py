"""Keep child processes running until told to stop.

A child says that it is ready with a line on its standard output, and stops at SIGTERM
or when its standard input ends: none outlives this process, however that one ends.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

READY = "ready"

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0
"""Who has lived so long starts again with the shortest pause."""

_STOP_S = 45.0
"""Longer than a bot takes to finish what is under way."""


@dataclass
class Child:
    """One process, which is started again whenever it ends.

    Attributes:
        name: for the log.
        words: of the command line, without the interpreter.
        fds: file descriptors that it inherits.
    """

    name: str
    words: Sequence[str]
    fds: Sequence[int] = ()
    process: asyncio.subprocess.Process | None = None
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """Starts children, and starts those again that end.

    Args:
        first: is ready before the others start; what is wrong with the settings is
            said by it alone.
        others: are started at the same time.
    """

    def __init__(self, first: Child, others: Sequence[Child]) -> None:
        self._first, self._others = first, others
        self._stopping = asyncio.Event()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all children."""
        for child in (self._first, *self._others):
            child.send(number)

    def reload(self) -> None:
        """Let all children read their files again that have read them."""
        for child in (self._first, *self._others):
            # Before it handles signals, this one would end it; and it reads all anew.
            if child.is_ready.is_set():
                child.send(signal.SIGHUP)

    async def start(self, keepers: list[asyncio.Task[int]]) -> None:
        """Start all; return when all are ready, or when one of them ended instead.

        Args:
            keepers: gets a task for each child, which ends with the exit code of one
                that was never ready.
        """
        for group in ([self._first], self._others):
            new = [asyncio.create_task(self._keep(child)) for child in group]
            keepers += new
            ready = asyncio.create_task(_all_ready(group))
            await asyncio.wait({ready, *new}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                ready.cancel()
                return

    async def stop(self, keepers: Sequence[asyncio.Task[int]]) -> None:
        """Stop all in order; kill those that take too long."""
        self._stopping.set()
        self.send(signal.SIGTERM)
        if keepers:
            _, late = await asyncio.wait(keepers, timeout=_STOP_S)
            if late:
                logger.error("worker.killed count=%d", len(late))
                self.send(signal.SIGKILL)
                await asyncio.wait(late)

    async def _keep(self, child: Child) -> int:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run(child)
            if self._stopping.is_set() or not child.is_ready.is_set():
                return code
            failures = 0 if time.monotonic() - began > _STEADY_S else failures + 1
            logger.error("worker.ended name=%s code=%d", child.name, code)
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures, 10))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
        return 0

    async def _run(self, child: Child) -> int:
        child.process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            *child.words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=tuple(child.fds),
        )
        # Stopped while it was being started, when `send` did not find it yet.
        if self._stopping.is_set():
            child.send(signal.SIGTERM)
        logger.info("worker.started name=%s pid=%d", child.name, process.pid)
        said = await process.stdout.readline() if process.stdout else b""
        if said.decode().strip() == READY:
            child.is_ready.set()
        return await process.wait()


async def _all_ready(children: Sequence[Child]) -> None:
    for child in children:
        await child.is_ready.wait()
