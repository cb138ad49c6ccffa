"""Announce the weekly digest, and alerts, as events of the outbox.

The publishing bot checks once a minute. An event is written once, in the same step that
records its occasion, so neither a restart nor a second bot announces it again. It is
then posted like any other event, however long Slack is unreachable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from keyturn.bot.cards.metrics_messages import DIGEST, digest_of
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.metrics import report
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service_settings import DigestSettings, MetricsSettings
from keyturn.gateway.store.runs.threads import Mark

LOOK_S = 60.0
"""Seconds between two checks."""

_STILL_NEWS = timedelta(days=1)
"""An older digest is not posted: no bot ran, or it was just set up."""

_DAY_MS = 86_400_000


_ANY = ""


class _Decision(NamedTuple):
    """A decision, and the names under which it counts: tool, tier and `_ANY`."""

    at_ms: int
    names: frozenset[str]
    is_corrected: bool


class MetricsReports:
    """Announcements about one tenant's metrics.

    Args:
        service: reads the metrics.
        settings: the announcements and their channel.
        tenant: the name in the events.
        reader: the reader of the outbox that posts them; it has the lease.
    """

    def __init__(
        self,
        service: ReviewService,
        settings: MetricsSettings,
        *,
        tenant: str,
        reader: str,
    ) -> None:
        self._service = service
        self._settings = settings
        self._tenant = tenant
        self._reader = reader
        self._keys = service.store.keys_of_tenant(tenant)
        self._empty = ""
        self._read_to = ""
        self._decisions = deque[_Decision]()

    async def look(self) -> None:
        """Announce a due digest and passed thresholds; needs the reader's lease.

        Raises:
            StoreUnavailable: the store does not answer.
            LeaseLost: another bot publishes now.
        """
        now_ms = await self._service.store.conn.now_ms(self._keys.outbox)
        alert, digest = self._settings.alert, self._settings.digest
        if digest is not None:
            await self._digest(digest, datetime.fromtimestamp(now_ms / 1000, UTC))
        if alert.waiting is not None:
            await self._waiting(int(alert.waiting.total_seconds()) * 1000)
        limits = dict(alert.corrected_of)
        if alert.corrected is not None:
            limits[_ANY] = alert.corrected
        if limits:
            await self._read_decisions(now_ms - _DAY_MS)
            for name, limit in limits.items():
                await self._corrected(name, limit, now_ms)

    async def _digest(self, settings: DigestSettings, now: datetime) -> None:
        due = settings.last_due(now)
        mark = due.date().isoformat()
        if now - due > _STILL_NEWS or mark in {self._empty, await self._mark("digest")}:
            return
        since, until = (int(at.timestamp() * 1000) for at in settings.week_of(due))
        week = report.Selection(since_ms=since, until_ms=until)
        if not await self.announce_digest(week, settings.zone, mark):
            # Only in memory: the log of that week is not read again each minute.
            self._empty = mark

    async def announce_digest(
        self, period: report.Selection, zone: ZoneInfo, mark: str
    ) -> bool:
        """Announce the numbers of a period, once for each mark; False without any.

        Raises:
            StoreUnavailable: the store does not answer.
            LeaseLost: another bot publishes now.
        """
        statistics = self._service.statistics
        metrics = await statistics.metrics(period, zone)
        if metrics.total.is_empty:
            return False
        before = await statistics.metrics(period.four_weeks_before, zone)
        data = {DIGEST: digest_of(metrics, before).model_dump_json()}
        await self._announce("digest", mark, EventName.METRICS_DIGEST, data)
        return True

    async def _waiting(self, limit_ms: int) -> None:
        count, since_ms = 0, 0
        async for loaded in self._service.queue.waiting():
            approval = loaded.approval
            for item in approval.items:
                asked_ms = item.changed_at_ms or approval.created_at_ms
                if item.is_pending and loaded.now_ms - asked_ms > limit_ms:
                    count += 1
                    since_ms = min(since_ms or asked_ms, asked_ms)
        was_over = await self._mark("waiting") == "over"
        if was_over == bool(count):
            return
        data = {"count": str(count), "limit_ms": str(limit_ms), "since": str(since_ms)}
        state, reason = ("over", "waiting") if count else ("under", "waiting_over")
        name = EventName.METRICS_ALERT
        await self._announce("waiting", state, name, data, reason=reason)

    async def _read_decisions(self, since_ms: int) -> None:
        """Read the newest decisions, and drop those that are older than a time."""
        log = self._service.store.audit(self._keys)
        async for event in log.entries(since_ms=since_ms, after=self._read_to):
            self._read_to = event.seq
            outcome = report.outcome_of(event)
            if outcome in report.DECIDED and not event.concerns_no_call:
                names = frozenset({_ANY, event.tool, report.tier_of(event)})
                is_corrected = outcome in report.CORRECTED
                self._decisions.append(_Decision(event.at_ms, names, is_corrected))
        while self._decisions and self._decisions[0].at_ms < since_ms:
            self._decisions.popleft()

    async def _corrected(self, of: str, limit: int, now_ms: int) -> None:
        """Announce once a day that people correct too many calls, also of one name."""
        found = [one.is_corrected for one in self._decisions if of in one.names]
        corrected, decisions = sum(found), len(found)
        is_over = corrected * 100 > limit * decisions
        # Once a day, because the rate fluctuates around its limit.
        day = datetime.fromtimestamp(now_ms / 1000, UTC).date().isoformat()
        told = (await self._mark("corrected")).split("\n")
        known = told if told[0] == day else [day]
        is_told = of in known[1:]
        if decisions < self._settings.alert.decisions or not is_over or is_told:
            return
        data = {
            "decisions": str(decisions),
            "corrected": str(corrected),
            "limit": str(limit),
            **({"of": of} if of else {}),
        }
        mark, name = "\n".join([*known, of]), EventName.METRICS_ALERT
        await self._announce("corrected", mark, name, data, reason="corrected")

    async def _mark(self, what: Mark) -> str:
        threads = self._service.store.threads
        return await threads.mark(self._keys, "", self._reader, what)

    async def _announce(
        self,
        what: Mark,
        mark: str,
        name: EventName,
        data: Mapping[str, str],
        *,
        reason: str = "",
    ) -> None:
        event = Event(
            name=name,
            tenant=self._tenant,
            channel=self._settings.channel or self._service.policy_now.defaults.channel,
            reason=reason,
            data=dict(data),
        ).model_dump_json()
        await self._service.store.threads.announce(
            self._keys, "", self._reader,
            what=what, mark=mark, outbox_event=event, audit_event=event
        )  # fmt: skip
