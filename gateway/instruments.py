"""Count in this process what no record of the store contains, for Prometheus.

Labels are words of the code: neither an agent nor an argument can add one.
"""

from __future__ import annotations

from importlib.metadata import version
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Histogram, Info

REGISTRY = CollectorRegistry()
"""Separate from the default one, which belongs to the program around Keyturn."""

Info("keyturn_build", "Version of this process.", registry=REGISTRY).info(
    {"version": version("keyturn")}
)

SLACK_CALLS = Counter(
    "keyturn_slack_api_calls",
    "Calls of Slack's Web API, by method and result.",
    ["method", "result"],
    registry=REGISTRY,
)

_API_REQUESTS = Histogram(
    "keyturn_api_request_seconds",
    "Requests of the HTTP API, by route and status, until their answer.",
    ["route", "status"],
    buckets=(0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30),
    registry=REGISTRY,
)

DECISION_TO_RUN = Histogram(
    "keyturn_decision_to_run_seconds",
    "Time from a person's decision until the call was claimed.",
    buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 1800, 7200, 86_400),
    registry=REGISTRY,
)


def answered(route: str, status: int, began_s: float) -> None:
    """Count an answer of the HTTP API.

    Args:
        route: template of its path.
        status: HTTP status of the answer.
        began_s: time of the request, by the monotonic clock.
    """
    _API_REQUESTS.labels(route, status).observe(monotonic() - began_s)
