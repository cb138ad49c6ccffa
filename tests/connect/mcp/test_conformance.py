"""The gate keeps what every connector that runs calls keeps."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import mcp_types as types
import pytest
from mcp import Client
from mcp.server.lowlevel import Server

from keyturn.connect.mcp.definitions import document
from keyturn.connect.mcp.server import CALL_ID, GateOptions
from keyturn.connect.mcp.serving import running
from keyturn.connect.mcp.upstreams import UpstreamSpec
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import (
    AGENT,
    EXECUTED,
    POLICY,
    Behaviour,
    Call,
    Desk,
    name_of,
)
from tests.connect.mcp.conftest import http_server
from tests.connect.mcp.test_calls import text_of

NAMED = POLICY.replace("  pay:", "  bank__pay:").replace("  wipe:", "  bank__wipe:")
TOOLS = [
    types.Tool(name=one, input_schema={"type": "object"}) for one in ("pay", "wipe")
]


def bank_server(desk: Desk) -> Server[Any]:
    """Return an MCP server with the tools of the desk."""

    async def list_tools(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=TOOLS)

    async def call_tool(
        _: object, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = getattr(desk.bank, params.name)
        text = await tool(**(params.arguments or {}))
        return types.CallToolResult(content=[types.TextContent(text=text)])

    return Server("bank", on_list_tools=list_tools, on_call_tool=call_tool)


class Gate:
    """One process of the gate, with a client."""

    def __init__(self, desk: Desk, url: str) -> None:
        self._desk = desk
        spec = UpstreamSpec("bank", url=f"{url}/mcp")
        self._options = GateOptions(upstreams=[spec], agent=AGENT, api_key="k")
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        enter = self._stack.enter_async_context
        self.server = await enter(running(self._options, self._desk.gate))
        self.client = await enter(Client(self.server.server, cache=None))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def die(self) -> None:
        """End as a killed process does: nothing under way is finished."""
        for call in self.server.calls.all():
            if call.work is not None:
                call.work.cancel()
        await self._stack.aclose()


class McpRun:
    """Calls of one response of the model, each under its id."""

    def __init__(self, driver: McpDriver, calls: Sequence[Call]) -> None:
        self._driver = driver
        self._calls = [(call, uuid.uuid4().hex) for call in calls]
        self._first = asyncio.create_task(self._call_all())

    async def _call_all(self) -> list[str]:
        client = self._driver.gate.client
        results = await asyncio.gather(
            *(
                client.call_tool(call.tool, call.args, meta=_named(known))
                for call, known in self._calls
            )
        )
        return [text_of(one) for one in results]

    async def outputs(self) -> list[str]:
        return await self._first

    async def replay(self) -> list[str]:
        return await self._call_all()

    async def stop(self) -> None:
        self._first.cancel()
        await asyncio.wait([self._first])
        await self._driver.restart()


def _named(known: str) -> Any:
    return {CALL_ID: known}


class McpDriver:
    """An agent of an MCP client."""

    def __init__(self, desk: Desk, url: str) -> None:
        self._desk, self._url = desk, url
        self.gate = Gate(desk, url)

    async def propose(self, calls: Sequence[Call]) -> McpRun:
        return McpRun(self, calls)

    async def restart(self) -> None:
        """Kill the gate, and start another."""
        await self.gate.die()
        self.gate = Gate(self._desk, self._url)
        await self.gate.__aenter__()


@pytest.mark.parametrize("behaviour", EXECUTED, ids=name_of)
async def test_the_gate_keeps_it(behaviour: Behaviour, store: Store) -> None:
    async with Desk.on(store, NAMED) as desk:
        keys = store.keys_of_tenant("default")
        kept = {tool.name: document(tool) for tool in TOOLS}
        await store.definitions.approve(keys, AGENT, "bank", kept)
        async with http_server(bank_server(desk).streamable_http_app()) as url:
            driver = McpDriver(desk, url)
            await driver.gate.__aenter__()
            try:
                await behaviour(desk, driver)
            finally:
                await driver.gate.__aexit__()
