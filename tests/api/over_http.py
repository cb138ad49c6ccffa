"""The harness of the services, whose agents ask over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property
from inspect import iscoroutinefunction
from typing import Any, cast

import pytest

from tests.api.api_stack import serving
from tests.service.harness import ServiceHarness
from twokey.gateway.client.http_gateway import HttpGateway
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.service.agents import AgentService

_PORT = frozenset(name for name, it in vars(Gateway).items() if iscoroutinefunction(it))


class AgentsOverHttp:
    """An `AgentService` whose port is asked over HTTP; the rest of it is as it is."""

    def __init__(self, harness: ServiceHarness, opened: AsyncExitStack) -> None:
        self._harness = harness
        self._opened = opened
        self._gateway: HttpGateway | None = None

    @cached_property
    def _here(self) -> AgentService:
        harness = self._harness
        return AgentService(harness.store, lambda: harness.policy)

    def __getattr__(self, name: str) -> Any:
        if name not in _PORT:
            return getattr(self._here, name)

        async def ask(*given: Any, **named: Any) -> Any:
            return await getattr(await self._connected(), name)(*given, **named)

        return ask

    async def _connected(self) -> HttpGateway:
        if self._gateway is None:
            api = await self._opened.enter_async_context(serving(self._harness))
            key = api.key(["*"])
            self._gateway = await self._opened.enter_async_context(api.gateway(key))
        return self._gateway


@asynccontextmanager
async def harness_over_http(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    """Let every harness that is made inside the block ask over HTTP."""
    made = ServiceHarness.__post_init__
    async with AsyncExitStack() as opened:

        def changed(harness: ServiceHarness) -> None:
            made(harness)
            over_http = AgentsOverHttp(harness, opened)
            harness.agents = cast("AgentService", cast("object", over_http))

        monkeypatch.setattr(ServiceHarness, "__post_init__", changed)
        yield
