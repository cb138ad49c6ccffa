"""Processes that submit at a signal of the test, so that all of them do so at once.

They are forks of a process that has already imported the product (`tests.forked`):
twenty imports would take longer than the test itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any

from tests.forked import FORKS

END = ""
"""What is sent to a process that may end."""


class AskingProcess:
    """One process; it answers each `go` with one value, in their order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def go(self, words: str) -> None:
        """Make it submit, without waiting for its answer."""
        self._connection.send(words)

    async def answer(self) -> Any:
        """Return the next value that it answers with.

        Raises:
            EOFError: the process died.
        """
        return await asyncio.to_thread(self._connection.recv)


@asynccontextmanager
async def asking(
    serve: Callable[..., None], *words: object
) -> AsyncGenerator[AskingProcess]:
    """Run ``serve(*words, connection)`` in a process that is asked in the block.

    `serve` is a function of a module. It sends one value when it is ready, and one for
    each text that it receives, until it receives `END`.
    """
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=serve, args=(*words, theirs), daemon=True)
    # The first start of all waits for the imports.
    await asyncio.to_thread(process.start)
    theirs.close()
    one = AskingProcess(ours)
    try:
        await one.answer()
        yield one
    finally:
        ours.send(END)
        await asyncio.to_thread(process.join)
        assert process.exitcode == 0
