"""Run background tasks after an acknowledgement, and finish them at shutdown.

A bare ``asyncio.create_task`` may be garbage-collected while it runs, and is dropped at
shutdown. No decision belongs here: decisions are written before the acknowledgement.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from keyturn.gateway.failures import any_failure, log_failure

logger = logging.getLogger(__name__)


class Tasks:
    """The tasks of one event loop that nobody waits for."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def later(self, work: Coroutine[object, object, None], *, name: str) -> None:
        """Start a task; whatever it raises is logged, never lost."""
        task = asyncio.create_task(self._logged(work, name), name=name)
        # The event loop keeps only weak references to tasks.
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def drain(self, *, timeout_s: float) -> None:
        """Wait until all are done, those they start included; then cancel the rest."""
        try:
            async with asyncio.timeout(timeout_s):
                # A task may start another one, such as a private reply after an offer.
                while self._running:
                    await asyncio.wait(self._running)
        except TimeoutError:
            logger.warning("tasks.cancelled count=%d", len(self._running))
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _logged(self, work: Coroutine[object, object, None], name: str) -> None:
        try:
            await work
        except any_failure() as error:  # nobody awaits it
            log_failure(logger, error, "task.failed name=%s", name)
