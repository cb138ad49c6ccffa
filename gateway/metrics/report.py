"""Metrics as a JSON document."""

from __future__ import annotations

from datetime import UTC, datetime

from keyturn.gateway.metrics.counts import Counts, Outcome, Share
from keyturn.gateway.metrics.duration_histogram import DurationHistogram
from keyturn.gateway.metrics.fold import OTHERS, Metrics
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def as_json(metrics: Metrics) -> JsonObject:
    """Return all counts; times are in seconds, rates from 0 to 1.

    A rate of an empty whole, and a waiting time without waits, is null.
    """
    selected = metrics.selected
    days, hours = sorted(metrics.days.items()), sorted(metrics.hours.items())
    return {
        "since": _utc(selected.since_ms) if selected.since_ms else None,
        "until": None if selected.until_ms is None else _utc(selected.until_ms),
        "zone": str(metrics.zone),
        "tool": selected.tool or None,
        "tier": selected.tier or None,
        "agent": selected.agent or None,
        "total": {
            **_row(metrics.total),
            "autonomous_runs": _share(metrics.total.autonomous_runs),
            "unknown_runs": metrics.total.unknown_runs,
        },
        "security": dict(sorted(metrics.security.items())),
        "tools": [{"tool": name, **_row(row)} for name, row in by_calls(metrics)],
        "tiers": [{"tier": name, **_row(row)} for name, row in by_tier(metrics)],
        "days": [{"day": day, **_row(row)} for day, row in days],
        "hours": [{"hour": at, **_row(row)} for at, row in hours],
    }


def by_calls(metrics: Metrics) -> list[tuple[str, Counts]]:
    """Return the tools, those with most calls first."""
    rows = metrics.tools.items()
    return sorted(rows, key=lambda row: (-row[1].evaluated, row[0]))


def by_tier(metrics: Metrics) -> list[tuple[str, Counts]]:
    """Return the tiers, the least strict first."""
    order = [*map(str, Tier), OTHERS]
    return sorted(metrics.tiers.items(), key=lambda row: order.index(row[0]))


def _row(counts: Counts) -> JsonObject:
    return {
        "calls": counts.evaluated,
        "autonomous": _share(counts.autonomous),
        "corrected": _share(counts.corrected),
        "outcomes": {str(one): counts.calls[one] for one in Outcome},
        "failed": counts.failed,
        "unused": counts.unused_auto,
        "too_soon": counts.too_soon,
        "spot_checks": counts.checks["asked"],
        "audit_yield": _share(counts.audit_yield),
        "seeded_defects": counts.seeded["shown"],
        "rubber_stamped": _share(counts.rubber_stamped),
        "waited": _waited(counts.waits),
    }


def _share(share: Share) -> JsonObject:
    return {"count": share.part, "of": share.whole, "rate": share.rate}


def _waited(waits: DurationHistogram) -> JsonObject:
    def seconds(value_ms: int | None) -> float | None:
        return None if value_ms is None else value_ms / 1000

    return {
        "count": waits.count,
        **{name: seconds(waits.quantile_ms(at)) for name, at in QUANTILES.items()},
        "longest": seconds(waits.longest_ms if waits.count else None),
    }


def _utc(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="seconds")
