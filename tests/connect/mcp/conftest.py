"""Give tests an MCP gate before a scripted server, and a gateway with people."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import uvicorn
from aiohttp import web
from mcp import Client

from keyturn.connect.gate import HttpGate
from keyturn.connect.mcp.definitions import document
from keyturn.connect.mcp.server import GateOptions, GateServer
from keyturn.connect.mcp.serving import running
from keyturn.connect.mcp.upstreams import UpstreamSpec
from keyturn.gateway.approvals.decisions import Decision
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.conftest import eventually
from tests.connect.mcp.upstream import TOOLS, Script, make_server
from tests.service.harness import POLICY, ServiceHarness

AUTO_AND_HELD = (
    POLICY
    + """\
  billing__pay: {tier: approve}
  billing__look_up: {tier: auto}
  billing__tell: {tier: notify}
  billing__drop: {tier: deny}
"""
)
SHORT_S = 0.4
LONG_S = 30.0


class _Quiet(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to pytest."""
        yield


@asynccontextmanager
async def http_server(app: Any, port: int = 0) -> AsyncGenerator[str]:
    """Serve an application in this loop; give its URL."""
    # Of this protocol, asyncio sends small answers without delay.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    config = uvicorn.Config(
        app, log_level="error", ws="none", timeout_graceful_shutdown=1
    )
    server = _Quiet(config)
    serving_it = asyncio.create_task(server.serve([listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving_it


class Seen:
    """The requests to the gateway, and what a test does to them."""

    def __init__(self) -> None:
        self.paths = list[str]()
        self.before: Fault = _nothing
        self.after: Fault = _nothing

    async def middleware(self, request: web.BaseRequest, handler: Any) -> Any:
        """Pass a request on, unless a fault raises or answers it."""
        name = request.path.rpartition("/")[2]
        self.paths.append(name)
        if (answer := await self.before(name)) is not None:
            return answer
        reply = await handler(request)
        await self.after(name)
        return reply


Fault = Callable[[str], Awaitable[web.Response | None]]
"""Gets the last part of a request's path; an answer replaces the gateway's."""


async def _nothing(_name: str) -> None:
    return None


@dataclass
class World:
    """People, a gateway, a scripted server, and gates between them."""

    people: ServiceHarness
    stack: ApiStack
    script: Script
    url: str
    key: str
    seen: Seen

    @asynccontextmanager
    async def gate(
        self, hold_s: float = LONG_S, **options: Any
    ) -> AsyncGenerator[GateServer]:
        """Start a gate; its requests wait for so many seconds."""
        spec = UpstreamSpec("billing", url=self.url)
        given: dict[str, Any] = {
            "upstreams": [spec],
            "agent": "coder",
            "api_key": self.key,
            "holds": {"": hold_s},
            **options,
        }
        caller = given.pop("caller", None)
        gate = HttpGate(self.stack.url, self.key)
        async with running(GateOptions(**given), gate, caller=caller) as server:
            yield server
        await gate.aclose()

    async def trust(self, *tools: dict[str, Any], agent: str = "coder") -> None:
        """Have definitions approved already."""
        await keep_definitions(self.people, agent, *tools)

    async def pending(self) -> list[str]:
        """Return the ids of the waiting calls, oldest first."""
        async with self.stack.client(self.key) as client:
            found = (await client.get("/v1/approvals", params={"limit": 200})).json()
        return [one["calls"][0]["id"] for one in reversed(found["approvals"])]

    async def asked(self, number: int = 1) -> list[str]:
        """Wait until so many calls wait for people; return their ids."""

        async def are_there() -> bool:
            return len(await self.pending()) >= number

        await eventually(are_there)
        found = await self.pending()
        assert len(found) == number
        return found

    async def decide(self, decision: Decision, number: int = 1) -> str:
        """Decide the oldest call as Ana, once so many wait; return its id."""
        item_id = (await self.asked(number))[0]
        await self.people.decide(item_id, decision)
        return item_id

    async def cards(self) -> int:
        """Count the calls that people were asked about."""
        return len(await self.people.announced(EventName.APPROVAL_OPENED))


@pytest.fixture
async def world(store: Store, tmp_path: Path) -> AsyncGenerator[World]:
    """Give people, a gateway and a scripted server."""
    people = ServiceHarness(store, load_policy(AUTO_AND_HELD, "policy.yml"))
    seen = Seen()
    async with serving(people, [seen.middleware]) as stack:
        script = Script(tmp_path / "billing")
        app = make_server(script.folder).streamable_http_app()
        async with http_server(app) as url:
            key = stack.key(agents=["coder"])
            made = World(people, stack, script, f"{url}/mcp", key, seen)
            await made.trust()
            yield made


async def keep_definitions(
    people: ServiceHarness, agent: str, *tools: dict[str, Any]
) -> None:
    """Keep definitions as if people had approved them; by default those of a script."""
    found = [types.Tool.model_validate(one) for one in tools or TOOLS]
    kept = {one.name: document(one) for one in found}
    await people.store.definitions.approve(people.keys, agent, "billing", kept)


Connect = Callable[..., Client]


@pytest.fixture(params=["auto", "legacy"])
def client_of(request: pytest.FixtureRequest) -> Connect:
    """Connect a client of the current protocol, and of the one before."""

    def connect(server: GateServer, **options: Any) -> Client:
        return Client(server.server, mode=request.param, cache=None, **options)

    return connect


def modern(server: GateServer, **options: Any) -> Client:
    """Connect a client of the current protocol."""
    return Client(server.server, cache=None, **options)


def legacy(server: GateServer, **options: Any) -> Client:
    """Connect a client of the protocol before."""
    return Client(server.server, mode="legacy", cache=None, **options)


async def until(holds: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    await eventually(lambda: bool(holds()))
