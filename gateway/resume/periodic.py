"""Run periodic work of a process: expiries, backoffs, orphaned threads."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.failures import log_failure
from twokey.gateway.resume.transient_retry import wait_or_timeout

logger = logging.getLogger(__name__)

SWEEP_S = 0.5
AUDIT_S = 1.0
ORPHANS_S = 5.0
SPREAD_S = 2.0
FORGET_S = 600.0
LONGEST_PAUSE_S = 10.0


async def repeat(
    work: Callable[[], Awaitable[object]], stop: asyncio.Event, *, every_s: float
) -> None:
    """Do ``work`` about every ``every_s`` seconds until ``stop`` is set.

    Replicas spread out by themselves: each pause is 50 to 150 % of ``every_s``. While
    the store is away the pause doubles; any other failure is logged and survived,
    because approvals must expire whatever else is wrong.
    """
    factor = 1.0
    while not stop.is_set():
        try:
            await work()
            factor = 1.0
        except StoreUnavailable as error:
            logger.warning("sweep.unavailable error=%s", error)
            factor *= 2
        except Exception as error:  # noqa: BLE001 - time must go on
            log_failure(logger, error, "sweep.failed")
            factor *= 2
        spread = random.uniform(0.5, 1.5)  # noqa: S311 - spreads load only
        # max(): rare work does not become frequent while the store is away.
        pause_s = min(every_s * factor, max(LONGEST_PAUSE_S, every_s)) * spread
        await wait_or_timeout(stop, pause_s)
