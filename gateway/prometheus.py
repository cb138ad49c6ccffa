"""Render metrics in Prometheus' text format; the text is kept for 5 s.

Most metrics are those of a tenant, counted from its store: every process shows the same
ones. `keyturn.gateway.instruments` has those of the process.

Labels are tools in the policy, tiers, and fixed words: neither an agent nor an argument
can add one. See https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from keyturn.gateway.instruments import REGISTRY
from keyturn.gateway.metrics.report import Counts, DurationHistogram, Metrics, Outcome
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.connection.usable import in_time
from keyturn.gateway.store.events.outbox import Backlog

_KEPT_S = 5.0
"""A second request within this time gets the same text: the endpoint is public."""

Waiting = dict[tuple[str, str], list[int]]
"""How long the pending calls of each tool and tier have waited, in milliseconds."""

_Parts = Iterable[tuple[str, int]]
"""Values of a label, and the number of calls with each."""

_COUNTERS: tuple[tuple[str, str, str, Callable[[Counts], _Parts]], ...] = (
    (
        "keyturn_calls",
        "Calls of agents, by how they got their answer.",
        "outcome",
        lambda counts: [(outcome, counts.calls[outcome]) for outcome in Outcome],
    ),
    (
        "keyturn_calls_failed",
        "Calls that ran and failed, by whether people were asked about them.",
        "asked",
        lambda counts: [
            ("no", counts.failed_auto),
            ("yes", counts.failed - counts.failed_auto),
        ],
    ),
    (
        "keyturn_calls_unused",
        "Calls that the policy let run and that did not.",
        "",
        lambda counts: [("", counts.unused_auto)],
    ),
    (
        "keyturn_handed_over",
        "Decisions handed to programs that run calls by themselves, by their end.",
        "end",
        lambda counts: sorted(counts.handed.items()),
    ),
    (
        "keyturn_approvals_too_soon",
        "Approvals that came too soon and were asked for once more.",
        "",
        lambda counts: [("", counts.too_soon)],
    ),
    (
        "keyturn_spot_checks",
        "Spot checks that were asked, and what people answered.",
        "answer",
        lambda counts: sorted(counts.checks.items()),
    ),
    (
        "keyturn_seeded_defects",
        "Seeded defects that were shown, and how they ended.",
        "answer",
        lambda counts: sorted(counts.seeded.items()),
    ),
)
"""Name, help, label and numbers of each counter by tool and tier."""


class MetricsEndpoint:
    """The text of ``GET /metrics``.

    Args:
        service: has the queue, runs and audit log.
        clock: seconds, monotonic.
    """

    def __init__(self, service: ReviewService, *, clock: Callable[[], float]) -> None:
        self._service = service
        self._live = service.statistics
        self._clock = clock
        self._text = b""
        self._made_at = 0.0
        self._making = asyncio.Lock()

    async def begin(self) -> None:
        """Start counting.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        await self._live.begin()

    async def text(self) -> bytes:
        """Return the current metrics.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        async with self._making:
            now = self._clock()
            if not self._text or now - self._made_at >= _KEPT_S:
                # Only this read has a limit: it is short, unlike those of all calls.
                async with in_time():
                    stalled = await self._service.runs.counts()
                metrics, waiting = await self._live.look(), await self._waiting()
                outbox, jobs = await self._live.outbox(), await self._live.jobs()
                self._text = exposition(metrics, waiting, stalled, outbox, jobs)
                self._made_at = now
        return self._text

    async def _waiting(self) -> Waiting:
        waiting: Waiting = {}
        async for loaded in self._service.queue.waiting():
            approval = loaded.approval
            for item in approval.items:
                if item.is_pending:
                    since_ms = item.changed_at_ms or approval.created_at_ms
                    cell = self._live.label(item.tool), item.tier.value
                    waiting.setdefault(cell, []).append(loaded.now_ms - since_ms)
        return waiting


def exposition(
    metrics: Metrics,
    waiting: Waiting,
    stalled: tuple[int, int],
    outbox: Backlog,
    jobs: int = 0,
) -> bytes:
    """Return metrics in the text format.

    Args:
        metrics: the counts, under the labels of tools.
        waiting: the pending calls.
        stalled: number of runs waiting for a retry, and number of parked runs.
        outbox: its backlog.
        jobs: number of jobs that no worker has taken.
    """
    now = (*_now(waiting, stalled), *_queues(outbox, jobs))
    stored = generate_latest(_Collected([*_counted(metrics), *now]))
    return stored + generate_latest(REGISTRY)


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _counted(metrics: Metrics) -> Iterator[Metric]:
    cells = sorted(metrics.cells.items())
    for name, help_text, label, counted in _COUNTERS:
        labels = [label] if label else []
        family = CounterMetricFamily(name, help_text, labels=["tool", "tier", *labels])
        for cell, counts in cells:
            for value, number in counted(counts):
                if number:
                    family.add_metric([*cell, *([value] if label else [])], number)
        yield family
    waits = HistogramMetricFamily(
        "keyturn_wait_seconds",
        "How long calls waited until a person decided them.",
        labels=["tool", "tier"],
    )
    for cell, counts in cells:
        if counts.waits.count:
            seconds = counts.waits.total_ms / 1000
            waits.add_metric(cell, _buckets(counts.waits), seconds)
    yield waits
    runs = CounterMetricFamily(
        "keyturn_runs", "Finished runs, by whether they asked people.", labels=["asked"]
    )
    total = metrics.total
    runs.add_metric(["no"], total.unasked_runs)
    runs.add_metric(["yes"], total.runs - total.unasked_runs)
    runs.add_metric(["unknown"], total.unknown_runs)
    yield runs
    found = CounterMetricFamily(
        "keyturn_security_events",
        "What was not as Keyturn wrote it, or did not go on as it should.",
        labels=["kind"],
    )
    for kind, count in sorted(metrics.security.items()):
        found.add_metric([kind], count)
    yield found


def _buckets(waits: DurationHistogram) -> list[tuple[str, float]]:
    rows = waits.up_to().items()
    return [*((f"{bound}.0", float(n)) for bound, n in rows), ("+Inf", waits.count)]


def _now(waiting: Waiting, stalled: tuple[int, int]) -> Iterator[Metric]:
    calls = GaugeMetricFamily(
        "keyturn_waiting_calls",
        "Calls that wait for people now.",
        labels=["tool", "tier"],
    )
    oldest = GaugeMetricFamily(
        "keyturn_waiting_oldest_seconds",
        "How long the call waits that waits longest.",
        labels=["tool", "tier"],
    )
    for cell, waited_ms in sorted(waiting.items()):
        calls.add_metric(cell, len(waited_ms))
        oldest.add_metric(cell, max(0, *waited_ms) / 1000)
    runs = GaugeMetricFamily(
        "keyturn_stalled_runs", "Runs that failed and have not ended.", labels=["state"]
    )
    for state, count in zip(("waiting", "parked"), stalled, strict=True):
        runs.add_metric([state], count)
    yield from (calls, oldest, runs)


def _queues(outbox: Backlog, jobs: int) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "keyturn_outbox_events",
        "Events in the outbox; it grows while a reader is away.",
        outbox.events,
    )
    yield GaugeMetricFamily(
        "keyturn_outbox_oldest_seconds",
        "Age of the oldest event that a reader has not acknowledged.",
        outbox.oldest_ms / 1000,
    )
    yield GaugeMetricFamily(
        "keyturn_outbox_held_up",
        "1 while a reader that is away keeps too many events in the outbox.",
        int(bool(outbox.problem)),
    )
    yield GaugeMetricFamily(
        "keyturn_jobs_waiting", "Jobs that no worker has taken.", jobs
    )
