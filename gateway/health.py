"""Answer the health checks and scrapes of one process, on Slack's port or alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.guarded_server import GuardedServer, Limits, listening
from keyturn.gateway.prometheus import MetricsEndpoint
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.report.process_check import process_problems
from keyturn.gateway.service_settings import Address
from keyturn.gateway.store.connection.usable import in_time, until_usable

Readiness = Callable[[], Awaitable[list[str]]]
MetricsText = Callable[[], Awaitable[bytes]]
Facts = Callable[[], Awaitable[Mapping[str, object]]]


def not_found() -> web.Response:
    """Return the answer for an unknown path."""
    return web.Response(status=HTTPStatus.NOT_FOUND, text="Not found.\n")


@dataclass(frozen=True, slots=True)
class Health:
    """Answers ``/healthz``, ``/readyz`` and ``/metrics``.

    Attributes:
        ready: returns the problems that keep the process from working; empty if it
            works.
        facts: returns more facts for operators.
        metrics: returns the text for Prometheus.
    """

    ready: Readiness
    facts: Facts
    metrics: MetricsText

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer a request; many monitors send HEAD, for an answer without a body."""
        match (request.method, request.path):
            case ("GET" | "HEAD", "/healthz"):
                return web.Response(text="ok\n")
            case ("GET" | "HEAD", "/readyz"):
                return await self._readiness()
            case ("GET" | "HEAD", "/metrics"):
                return await self._metrics_text()
            case _:
                return not_found()

    async def _readiness(self) -> web.Response:
        problems, facts = await asyncio.gather(self.ready(), self.facts())
        if not problems:
            return web.json_response({"ready": True, **facts})
        body = {"ready": False, "problems": problems, **facts}
        return web.json_response(body, status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def _metrics_text(self) -> web.Response:
        try:
            text = await self.metrics()
        except StoreUnavailable:
            # A failed scrape is visible; an invented zero would not be.
            status = HTTPStatus.SERVICE_UNAVAILABLE
            return web.Response(status=status, text="The store does not answer.\n")
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def health_of(
    service: ReviewService,
    ready: Readiness,
    *,
    tenant: str,
    clock: Callable[[], float] = now_s,
) -> Health:
    """Return the health of a process, and begin to count.

    Args:
        service: has the queue, runs and audit log.
        ready: returns the problems of the process.
        tenant: tenant of the service.
        clock: seconds, monotonic.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    metrics = MetricsEndpoint(service, clock=clock)
    await until_usable(metrics.begin, service.store.conn.url)
    return Health(ready, partial(_facts, service, tenant), metrics.text)


async def _facts(service: ReviewService, tenant: str) -> dict[str, object]:
    """Return problems of other parts; they do not make the process unready."""
    store = service.store
    try:
        async with in_time():
            waiting, parked = await service.runs.counts()
            others = await process_problems(store, store.keys_of_tenant(tenant))
            outbox = (await service.statistics.outbox()).problem
    except StoreUnavailable:
        return {}
    failed = {"waiting": waiting, "parked": parked} if waiting or parked else {}
    found: dict[str, object] = {"runs": failed, "others": others, "outbox": outbox}
    return {name: value for name, value in found.items() if value}


@asynccontextmanager
async def serving_health(
    address: Address | None, health: Health
) -> AsyncGenerator[str]:
    """Serve health and metrics alone while the block runs, if there is an address.

    Yields:
        Its URL; "" without an address.

    Raises:
        SettingsError: the address cannot be used.
    """
    if address is None:
        yield ""
        return
    server = GuardedServer(health.answer, Limits(), name="health")
    names = "'metrics.listen' (KEYTURN_METRICS_LISTEN)"
    async with listening(server, address, names) as url:
        yield url
