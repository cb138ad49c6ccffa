"""Detect a store restored from a backup, put its calls in doubt, run recovery."""

from __future__ import annotations

import logging

from twokey.gateway.resume.recovery import Recovery
from twokey.gateway.resume.restore_detection import (
    ALIVE_MS,
    Consistency,
    RestoreDetector,
)
from twokey.gateway.resume.runners import Runners
from twokey.gateway.service.recovering import RecoveryService
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store
from twokey.gateway.store.usable import until_usable

logger = logging.getLogger(__name__)

TICK_S = 5.0
"""How often the restore counters rise and are compared."""
HOURLY_S = 3600.0


class RecoveryLoop:
    """What one process does to notice losses and to recover from them.

    Args:
        store: where the records are.
        runners: what this process runs, and its checkpoints.
        tenant: whose agents these are.
    """

    def __init__(
        self, store: Store, runners: Runners, *, tenant: str = "default"
    ) -> None:
        saver = runners.saver
        parts = () if saver is None else store.parts_of(tenant)
        self._detectors = {
            keys: RestoreDetector(store, saver, tenant=tenant, part=keys)
            for keys in parts
            if saver is not None
        }
        self._records = RecoveryService(store, tenant=tenant)
        self._recovery = Recovery(store, runners, tenant=tenant)
        self._url = store.conn.url
        self._ticks_left = 0

    async def begin(self) -> None:
        """Doubt what a restored store says, before anything of it is carried out.

        A store that is away is waited for, as when it was opened.

        Raises:
            StoreUnavailable: when the store does not answer in time.
        """
        await until_usable(self._compare, self._url)

    async def tick(self) -> None:
        """Detect a loss, and compare store and checkpoints when that is due."""
        await self._compare()
        # A look reads every waiting thread, so it is hourly; counters are compared at
        # each tick.
        if self._ticks_left > 0:
            self._ticks_left -= 1
            return
        only = [await one.is_only_process() for one in self._detectors.values()]
        is_only_process = bool(only) and all(only)
        found = await self._recovery.recover(is_only_process=is_only_process)
        waits_s = HOURLY_S
        if found.gone and not is_only_process and self._detectors:
            # A gateway with other checkpoints used this store a moment ago.
            waits_s = ALIVE_MS / 1000
        self._ticks_left = int(waits_s / TICK_S)

    async def _compare(self) -> None:
        for keys, detector in self._detectors.items():
            await self._compare_part(keys, detector)

    async def _compare_part(self, keys: Keys, detector: RestoreDetector) -> None:
        consistency = await detector.compare()
        if consistency is not Consistency.SAME:
            logger.error("recovery.inconsistent %s", consistency)
            if consistency is Consistency.STORE_IS_OLDER:
                await self._records.doubt_all(keys)
            # Only after everything is in doubt: killed in between, the next start still
            # sees the difference and does it again.
            await detector.equalize()
            self._ticks_left = 0
        await detector.advance()
