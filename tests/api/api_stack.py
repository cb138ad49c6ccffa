"""A gateway that answers over real HTTP, on a store of the tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from tests.service.harness import ServiceHarness
from twokey.agent.http_gateway import HttpGateway
from twokey.gateway.api.api_keys import ApiKey, ApiKeys, new_api_key
from twokey.gateway.api.server import Api
from twokey.gateway.service.agents import AgentService

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
PEPPER = b"p" * 32


@dataclass
class ApiStack:
    """The harness of the services, and its agents' side over HTTP."""

    harness: ServiceHarness
    url: str = ""
    now: datetime = NOW
    kept: dict[str, ApiKey] = field(default_factory=dict[str, ApiKey])

    def key(
        self,
        agents: Collection[str] = ("support",),
        tenant: str = "default",
        lives: timedelta = timedelta(hours=1),
        **limits: Any,
    ) -> str:
        """Return a new API key."""
        made = new_api_key(
            PEPPER,
            name="test",
            tenant=tenant,
            agents=agents,
            now=self.now,
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

    async def find(self, key_id: str) -> ApiKey | None:
        """Return what is kept of a key."""
        return self.kept.get(key_id)

    async def clock(self) -> datetime:
        """Return the time of the store."""
        return self.now


@asynccontextmanager
async def serving(harness: ServiceHarness) -> AsyncGenerator[ApiStack]:
    """Serve the harness's store over HTTP."""
    stack = ApiStack(harness)

    def port_of(tenant: str) -> AgentService:
        return AgentService(harness.store, lambda: harness.policy, tenant=tenant)

    async def agent_of(tenant: str, item_id: str) -> str | None:
        return await port_of(tenant).agent_of(item_id)

    api = Api(ApiKeys(PEPPER, stack.find, stack.clock), port_of, agent_of)
    runner = web.AppRunner(api.application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stack.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stack
    finally:
        await runner.cleanup()
