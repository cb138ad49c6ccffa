"""Report security events: to the log, to the audit log, and to people.

An attacker with write access to the store can cause any number of them. This process
logs and counts every event. The store gets the same event once in ten minutes, at most
20 of a kind within that time, and then their total. People get three, and then the
total. Each kind has a separate budget: some kinds can be caused by anyone who reaches a
port, and must not use up the budget of the others.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from keyturn.gateway.approvals.events import Event, SecurityEvent, SecurityKind, summary
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.conditional_write import write_if
from keyturn.gateway.trust.seals import Purpose, seal_keys

logger = logging.getLogger(__name__)

_PERIOD_S = 600.0
_LOGGED, _ANNOUNCED = 20, 3
_MOST_KNOWN = 10_000


@dataclass
class _Period:
    """Number of events of one kind and tenant since a moment."""

    since: float
    keys: Keys
    found: int = 0

    def summaries(self, tenant: str, kind: SecurityKind) -> Iterator[Event | None]:
        """Yield the summaries to announce and to log; None for an empty one."""
        for told in (_ANNOUNCED if kind.is_announced else self.found, _LOGGED):
            left = self.found - told
            yield summary(tenant, kind, left) if left > 0 else None


class SecurityEvents:
    """The security events of this process.

    Args:
        conn: connection to the store.
        clock: monotonic seconds.

    Attributes:
        counts: numbers of events in this process.
        tenant: tenant whose people get the reports.
    """

    tenant = ""

    def __init__(
        self, conn: Connection, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._conn = conn
        self._clock = clock
        self._known: dict[str, float] = {}
        self._periods: dict[tuple[str, SecurityKind], _Period] = {}
        self.counts: Counter[SecurityKind] = Counter()

    async def report(self, keys: Keys, found: SecurityEvent) -> None:
        """Report an event once; never fails.

        Args:
            keys: keys of the tenant where it was found.
            found: the event.
        """
        if not found.tenant:
            found = found.with_(tenant=self.tenant)
        place, now = self._mark(keys, found.model_dump_json()), self._clock()
        if now - self._known.get(place, now - _PERIOD_S) < _PERIOD_S:
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[place] = now
        self.counts[found.kind] += 1
        logger.error(
            "security.detected kind=%s tenant=%r about=%s name=%r agent=%r thread=%r "
            "approval=%r key=%s",
            found.kind, found.tenant, found.about, found.name, found.agent,
            found.thread, found.approval, found.key_id,
        )  # fmt: skip
        await self._end_periods(now)
        period = self._periods.setdefault(
            (found.tenant, found.kind), _Period(now, keys)
        )
        period.found += 1
        is_announced = found.kind.is_announced and period.found <= _ANNOUNCED
        told = found.announced() if is_announced else None
        logged = found.logged() if period.found <= _LOGGED else None
        if told or logged:
            await self._write(keys, place, told, logged)

    async def tell_left(self) -> None:
        """Report summaries whose period is over."""
        await self._end_periods(self._clock())

    async def _end_periods(self, now: float) -> None:
        ended = [
            one
            for one, period in self._periods.items()
            if now - period.since >= _PERIOD_S
        ]
        for tenant, kind in ended:
            period = self._periods.pop((tenant, kind))
            told, logged = period.summaries(tenant, kind)
            if told or logged:
                text = f"{tenant} {kind} {id(self)} {now}"
                place = self._mark(period.keys, text)
                await self._write(period.keys, place, told, logged)

    def _mark(self, keys: Keys, text: str) -> str:
        """Return the key that marks an event as reported."""
        # Keyed by the secret: an attacker must not be able to set the mark in advance.
        if self._conn.secrets:
            sealing = seal_keys(self._conn.secrets, Purpose.RECORDS)
            text = sealing.make("told", (keys.tenant,), text.encode()).hex()
        return keys.security(text)

    async def _write(
        self, keys: Keys, place: str, told: Event | None, logged: Event | None
    ) -> None:
        try:
            await write_if(
                self._conn,
                keys,
                # Another process may have reported it.
                [(["GET", place], "")],
                ["SET", place, "1", "PX", int(_PERIOD_S * 1000)],
                outbox=[told] if told else [],
                audit=[logged] if logged else [],
            )
        except StoreUnavailable as error:
            # The text is rejected anyway, and the log has the event.
            logger.warning("security.not_recorded why=%s", error)
