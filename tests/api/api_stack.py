"""A gateway that answers over real HTTP, on a store of the tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import httpx
from aiohttp import web

from keyturn.gateway.api.api_keys import ApiKeys
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.api.refusals import unreadable
from keyturn.gateway.api.server import Api, tenant_services
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.guarded_server import GuardedServer, Limits
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.http_api import MAX_BODY_BYTES, LeaseRef
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.trust.api_keys import ApiKey, new_api_key
from keyturn.gateway.trust.seals import Purpose, SealKeys
from tests.service.harness import ServiceHarness

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
SEALS = SealKeys([b"p" * 32], Purpose.FACTS)


@dataclass
class ApiStack:
    """The harness of the services, and its agents' side over HTTP.

    ``names`` are existing values, by the names of the fields that contain them.
    """

    harness: ServiceHarness
    tenant: str = "default"
    url: str = ""
    now: datetime = NOW
    kept: dict[str, ApiKey] = field(default_factory=dict[str, ApiKey])
    api: Api = field(init=False)
    names: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def key(
        self,
        agents: Collection[str] = ("support",),
        lives: timedelta = timedelta(hours=1),
        **limits: Any,
    ) -> str:
        """Return a new API key."""
        made = new_api_key(
            SEALS,
            name="test",
            tenant=self.tenant,
            agents=agents,
            created_at=self.now,
            expires_at=self.now + lives,
            **limits,
        )
        self.kept[made.kept.id] = made.kept
        return made.text

    @asynccontextmanager
    async def gateway(self, key: str | None = None) -> AsyncGenerator[HttpGateway]:
        """Connect an agent with a key."""
        found = HttpGateway(self.url, key or self.key())
        try:
            yield found
        finally:
            await found.aclose()

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        """Return a client that sends a key, or another bearer token."""
        headers = {"Authorization": f"Bearer {key or self.key()}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60.0)

    async def find(self, key_id: str) -> tuple[ApiKey, datetime] | None:
        """Return the stored fields of a key, and the time."""
        kept = self.kept.get(key_id)
        return None if kept is None or kept.revoked_at else (kept, self.now)


async def always_ready() -> list[str]:
    """Return no problems."""
    return []


async def no_report(*_: object) -> None:
    """Report nothing."""


@asynccontextmanager
async def serving(
    harness: ServiceHarness,
    middlewares: Sequence[Any] = (),
    limits: Limits | None = None,
    tenant: str = "default",
) -> AsyncGenerator[ApiStack]:
    """Serve the harness's store over HTTP, behind the given proxy."""
    stack = ApiStack(harness, tenant)
    store = harness.store
    port = AgentService(store, lambda: harness.policy, tenant=tenant)
    feed = EventFeed(store, tenant=tenant)
    services = tenant_services(store, port, feed, tenant=tenant)
    stack.api = Api(
        ApiKeys(SEALS, stack.find),
        services,
        RateLimits(6000),
        ready=always_ready,
        report=no_report,
        clock_s=store.conn.clock.now_s,
    )
    handle: Any = stack.api.handle
    for middleware in reversed(middlewares):
        handle = partial(middleware, handler=handle)
    server = GuardedServer(
        handle,
        limits or Limits(body_bytes=MAX_BODY_BYTES),
        name="api",
        error_answer=unreadable,
        # The proxy in front of the server then sees every request.
        admit=None if middlewares else stack.api.admit,
    )
    runner = web.ServerRunner(server, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stack.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stack
    finally:
        feed.end_waits()
        await runner.cleanup()


@contextmanager
def under(run: RunRef, token: str, fence: int) -> Generator[None]:
    """Send requests under a lease on a thread while the block runs."""
    text = LeaseRef(run, token, fence).text
    with run_context.under_lease(partial(str, text)):
        yield
