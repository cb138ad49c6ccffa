"""Decide how long a thread of this process is tried again, and with which pauses."""

from __future__ import annotations

import asyncio
import logging

from twokey.gateway.errors import ThreadUnavailable, TwokeyError
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.resume.diagnosis import diagnose
from twokey.gateway.resume.transient_retry import backoff_s
from twokey.gateway.retrying import RetrySettings

logger = logging.getLogger(__name__)

BUSY_S = 1.0
"""How soon to look again at a thread that another process runs."""


class NoThread(ThreadUnavailable):
    """There is no such thread."""

    def __init__(self, run: RunRef, hint: str) -> None:
        super().__init__(f"There is no thread {run.thread!r} of {run.agent!r}{hint}.")


class Attempts:
    """The attempts at one step of a thread.

    Args:
        run: of the thread.
        retries: how long it is tried again.
        url: of the gateway.
    """

    def __init__(self, run: RunRef, retries: RetrySettings, *, url: str) -> None:
        self._run = run
        self._url = url
        self._retries = retries
        self._pauses = backoff_s()
        self._began_s = asyncio.get_running_loop().time()

    def pause_s(self, error: Exception) -> float | None:
        """Return how long to wait before the next attempt; None: there is none."""
        if isinstance(error, NoThread):
            return None
        can_pass = isinstance(error, ThreadUnavailable)
        if can_pass and error.__cause__ is None:
            # Another process runs it, or finishes a call of it: not an outage.
            return BUSY_S
        found = diagnose(error)
        can_pass = can_pass or found.can_pass
        limit = self._retries.limit if can_pass else self._retries.unknown_limit
        age_s = asyncio.get_running_loop().time() - self._began_s
        if (found.is_final and not can_pass) or age_s >= limit.total_seconds():
            return None
        pause_s = max(next(self._pauses), found.retry_after_s)
        logger.warning(
            "run.waiting gateway=%s agent=%s thread=%s error=%s next_in_s=%.1f%s",
            self._url,
            self._run.agent,
            self._run.thread,
            type(error.__cause__ or error).__name__,
            pause_s,
            # Words of ours only: others may hold what no log should.
            f": {error}" if isinstance(error, TwokeyError) else "",
        )
        return pause_s
