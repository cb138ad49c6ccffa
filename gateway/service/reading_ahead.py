"""Read approvals before anybody decides them, so that a click is decided in one step.

Who draws a card keeps what it read and evaluated (`AsShownService`). Clicks also come
to processes that draw none: workers, a bot that stands by, one that has just started.
They follow the outbox, beside its readers, and keep the same of what is opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.errors import CorruptRecord, NewerRecord, StoreUnavailable
from twokey.gateway.failures import log_failure
from twokey.gateway.policy.rules import Policy
from twokey.gateway.service.as_shown import AsShownService
from twokey.gateway.service.queue import ReviewQueue
from twokey.gateway.service.reevaluation import evaluate_waiting
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

MOST: Final = 2_000
"""Waiting approvals that are read at the start, and again under another policy."""

PAUSE_S: Final = 0.3
"""Between an event and the reading. A process that draws the card has kept the record
by then and does not read it twice; before, nobody has seen the card."""

_MOST_AGAIN = 100
"""Of how many approvals that is done in one look which were drawn or changed since."""

_BLOCK_MS = 1_000
_RETRY_S = 1.0

Quiet = Callable[[], Awaitable[None]]
"""Waits until there is time."""


async def at_once() -> None:
    """Wait for nothing."""


async def _time(quiet: Quiet) -> None:
    """Wait until there is time, and let everybody else have their turn before."""
    # What never waits keeps the event loop to itself: a click that comes meanwhile is
    # not even seen, and nobody says that it is not quiet.
    await asyncio.sleep(0)
    await quiet()


class ReadingAhead(PolicyService):
    """Keeps what waits for people as if this process had shown it.

    Args:
        store: what is read.
        policy: returns the policy in force now.
        kept: where it is kept.
        tenant: whose approvals are read.
        part: of the tenant, that is read; None is its own shard.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], Policy],
        kept: AsShownService,
        *,
        tenant: str = "default",
        part: Keys | None = None,
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._part = part or self._own
        self._kept = kept
        self._queue = ReviewQueue(store, tenant=tenant)
        # Nothing is taken or acknowledged under this name.
        self._outbox = store.outbox(self._part, reader="")
        self._place = ""
        self._read_by: Policy | None = None

    async def run(self, quiet: Quiet) -> None:
        """Read ahead until cancelled; without it, clicks are answered all the same."""
        is_away = False
        while True:
            try:
                await self.look(quiet)
                if is_away:
                    logger.info("reading_ahead.resumed")
                is_away = False
            except StoreUnavailable as error:
                # Once, not at each try: an outage may take hours.
                if not is_away:
                    logger.warning("reading_ahead.paused why=%s", error)
                is_away = True
                await asyncio.sleep(_RETRY_S)
            except Exception as error:  # noqa: BLE001 - clicks are answered without it
                log_failure(logger, error, "reading_ahead.failed")
                await asyncio.sleep(_RETRY_S)

    async def look(
        self, quiet: Quiet, *, block_ms: int = _BLOCK_MS, pause_s: float = PAUSE_S
    ) -> None:
        """Read what was opened since the last look; at the first one, what waits.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if not self._place:
            # Before the reading, so that what is opened meanwhile is not missed.
            self._place = await self._outbox.newest()
        policy = self._policy()
        if policy is not self._read_by:
            async for loaded in self._queue.waiting(MOST, part=self._part):
                await self._keep(loaded, quiet)
            self._read_by = policy
        before = self._place
        # Each process that answers reads what all of them did: not between clicks.
        await quiet()
        opened, moved, self._place = await self._outbox.changes(
            before, block_ms=block_ms
        )
        # Decided by another process, above all: it would stay until there is no room.
        for approval_id, at_ms in moved.items():
            self._kept.moved(approval_id, at_ms)
        # Also after events of clicks: the next look takes many of them in one go.
        if self._place != before:
            await asyncio.sleep(pause_s)
        for event in opened:
            if self._is_opened(event):
                await self._read(event.approval, quiet)
        for approval_id in self._kept.not_precomputed()[:_MOST_AGAIN]:
            await self._precompute(approval_id, quiet)

    def _is_opened(self, event: Event) -> bool:
        is_opened = event.name is EventName.APPROVAL_OPENED
        is_own = event.tenant == self._tenant
        return is_opened and is_own and not event.is_auto_approved

    async def _read(self, approval_id: str, quiet: Quiet) -> None:
        # Drawn here in the meantime.
        if self._kept.find(approval_id) is not None:
            await self._precompute(approval_id, quiet)
            return
        if not self._kept.has_room():
            return
        try:
            loaded = await self._store.approvals.load(approval_id)
        except (CorruptRecord, NewerRecord):
            return  # whoever has to show it reports it
        if loaded is not None:
            await self._keep(loaded, quiet)

    async def _keep(self, loaded: Loaded, quiet: Quiet) -> None:
        if not self._kept.has_room():
            return
        await _time(quiet)
        policy, approval = self._policy(), loaded.approval
        try:
            evaluated = await evaluate_waiting(self._store, policy, approval)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - it must not hide the others
            log_failure(logger, error, "reading_ahead.skipped approval=%s", approval.id)
            return
        self._kept.keep(loaded, policy, evaluated)
        await self._precompute(approval.id, quiet)

    async def _precompute(self, approval_id: str, quiet: Quiet) -> None:
        """Precompute what a click would do, while nobody clicks."""
        await _time(quiet)
        try:
            self._kept.precompute(approval_id)
        except Exception as error:  # noqa: BLE001 - it is decided all the same
            log_failure(
                logger, error, "reading_ahead.not_precomputed approval=%s", approval_id
            )
