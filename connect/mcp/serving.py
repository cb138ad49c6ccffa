"""Run an MCP gate: over stdin and stdout, or over streamable HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp.server.lowlevel import NotificationOptions
from mcp.server.stdio import stdio_server

from keyturn.connect.gate import Gate
from keyturn.connect.mcp.calls import Caller, Calls, gate_secret
from keyturn.connect.mcp.passage import Passage
from keyturn.connect.mcp.server import Context, GateServer, Holds
from keyturn.connect.mcp.upstreams import Upstream, UpstreamSpec
from keyturn.gateway.background import GRACE_S, begun
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import Person


@dataclass(frozen=True)
class GateOptions:
    """What a gate is started with.

    Attributes:
        upstreams: the servers behind the gate.
        agent: the agent in whose name calls are proposed.
        api_key: the key for the gateway; the gate's own secrets are derived from it.
        requester: the person whom the configuration names as requester.
        holds: how long requests wait.
        env: the environment of local servers.
    """

    upstreams: Sequence[UpstreamSpec]
    agent: str
    api_key: str = field(repr=False)
    requester: Person | None = None
    holds: Holds = field(default_factory=Holds)
    env: Mapping[str, str] | None = field(default=None, repr=False)


@asynccontextmanager
async def running(
    options: GateOptions,
    gate: Gate,
    *,
    caller: Callable[[Context], Caller] | None = None,
) -> AsyncGenerator[GateServer]:
    """Run a gate; afterwards the calls under way are recorded.

    Raises:
        SettingsError: the upstreams are none, or two have one name.
    """
    names = [spec.name for spec in options.upstreams]
    if not names or len({*names}) < len(names):
        raise SettingsError(
            f"The upstreams of a gate are {names}: give at least one, and each another "
            "name."
        )
    upstreams = {
        spec.name: Upstream(spec, env=options.env) for spec in options.upstreams
    }
    key = options.api_key
    calls = Calls(gate_secret(key, "calls"), clock_s=time.monotonic)
    passage = Passage(gate, options.agent, upstreams, calls)
    configured = Caller(person=options.requester)
    server = GateServer(
        passage=passage,
        calls=calls,
        upstreams=upstreams,
        secret=gate_secret(key, "state"),
        holds=options.holds,
        caller=caller or (lambda _: configured),
    )
    following = begun(passage.follow())
    try:
        yield server
    finally:
        following.cancel()
        await passage.finish_work(GRACE_S)
        await asyncio.gather(*(one.aclose() for one in upstreams.values()))


async def serve_stdio(server: GateServer) -> None:
    """Serve one client over stdin and stdout until it ends."""
    options: Any = server.server.create_initialization_options(
        NotificationOptions(tools_changed=True)
    )
    async with stdio_server() as (read, write):
        await server.server.run(read, write, options)
