"""Retry transient errors in place, without a queued job."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.resume.diagnosis import diagnose

SWEEP_S = 0.5
AUDIT_S = 1.0
MEND_S = 2.0
FORGET_S = 600.0
LONGEST_REST_S = 10.0


async def repeat(
    work: Callable[[], Awaitable[object]], stop: asyncio.Event, *, every_s: float
) -> None:
    """Do ``work`` about every ``every_s`` seconds until ``stop`` is set.

    Each pause is 50 to 150 % of ``every_s``, so replicas spread out. While the store is
    unavailable the pause doubles. Any other failure is logged and survived, because
    approvals must expire despite other problems.
    """
    factor = 1.0
    while not stop.is_set():
        try:
            await work()
            factor = 1.0
        except StoreUnavailable as error:
            logger.warning("sweep.unavailable error=%s", error)
            factor *= 2
        except any_failure() as error:  # the loop must continue
            log_failure(logger, error, "sweep.failed")
            factor *= 2
        spread = random.uniform(0.5, 1.5)  # noqa: S311 - spreads load only
        # max(): rare work does not become frequent while the store is unavailable.
        pause_s = min(every_s * factor, max(LONGEST_REST_S, every_s)) * spread
        await wait_or_timeout(stop, pause_s)


logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0

T = TypeVar("T")


class InputNotGiven(Exception):
    """A transient error kept a thread from getting its input."""


def backoff_s() -> Iterator[float]:
    """Yield the pauses between attempts: each twice as long, up to a limit."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def retry_transient(work: Callable[[], Awaitable[T]]) -> T:
    """Repeat ``work`` until it succeeds or fails with a permanent error."""
    pauses = backoff_s()
    while True:
        try:
            return await work()
        except Exception as error:
            if not diagnose(error).can_pass:
                raise
            logger.warning("wait.continues error=%s", type(error).__name__)
        await asyncio.sleep(next(pauses))


async def drain_tasks(tasks: Collection[asyncio.Task[Any]], grace_s: float) -> None:
    """Wait for tasks to end, then cancel the rest after ``grace_s``."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=grace_s)
    for task in late:
        task.cancel()
    if late:
        # Cancelled tasks hand back their jobs and leases before they end.
        await asyncio.wait(late)


async def wait_or_timeout(event: asyncio.Event, pause_s: float) -> None:
    """Wait for an event, at most ``pause_s``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await event.wait()
