"""Killed gates, dying servers and a gateway that is away: at most one effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from keyturn.connect.mcp.results import DECISION
from keyturn.connect.mcp.server import WAIT
from keyturn.connect.mcp.upstreams import UpstreamSpec
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.protocol.records import ItemState
from tests.conftest import eventually
from tests.connect.mcp.conftest import (
    Seen,
    World,
    http_server,
    legacy,
    modern,
    until,
)
from tests.connect.mcp.test_calls import text_of
from tests.connect.mcp.test_stdio import Raw, started
from tests.connect.mcp.upstream import make_server
from tests.levels import sample
from tests.ports import free_port

ARGS = {"to": "ada", "amount": 5}
CALL: Any = {"name": "pay", "arguments": ARGS, "_meta": {"dev.keyturn/call": "c1"}}


@asynccontextmanager
async def killed(world: World, when: str, name: str) -> AsyncGenerator[Raw]:
    """Start a gate that is killed before or after the gateway's answer to a request."""
    async with started(world) as raw:

        async def kill(path: str) -> web.Response | None:
            if path != name or raw.process.returncode is not None:
                return None
            raw.process.kill()
            await raw.process.wait()
            # Before the gateway's answer: it never got the request.
            return web.Response(status=502)

        setattr(world.seen, when, kill)
        yield raw
        world.seen.before, world.seen.after = Seen().before, Seen().after


POINTS = [
    ("after", "submit", 1),
    ("before", "claim", 1),
    ("after", "claim", 0),
    ("before", "heartbeat", 1),
    ("before", "finish", 1),
    ("after", "finish", 1),
]
"""Where a gate is killed, and the effects in the end."""


@pytest.mark.slow
@pytest.mark.parametrize(("when", "name", "effects"), sample(POINTS, 3))
async def test_a_killed_gate_runs_a_call_at_most_once(
    world: World, when: str, name: str, effects: int
) -> None:
    world.script.put(hangs=name == "heartbeat")
    async with killed(world, when, name) as raw:
        await raw.send(id=3, method="tools/call", params=CALL)
        await world.asked()
        if name != "submit":
            await world.decide(Approve())
        await asyncio.wait_for(raw.process.wait(), 30)
    world.script.put()
    async with started(world, "--hold", "6s") as raw:
        await raw.send(id=3, method="tools/call", params=CALL)
        if name == "submit":
            await world.decide(Approve())
        result = await raw.answer(3)
    text = str(result["content"])
    assert len(world.script.calls()) == effects
    assert await world.cards() == 1
    if (when, name) in {("after", "submit"), ("before", "claim"), ("after", "finish")}:
        assert result["structuredContent"] == {"paid": 5, "to": "ada"}
    else:
        # It is unknown whether the call ran, and no text denies that it ran.
        assert "is unknown. Do not repeat it" in text
        assert "not run" not in text


@pytest.mark.slow
@pytest.mark.parametrize(("dies", "effects"), [("before", 0), ("after", 1)])
async def test_a_dead_server_is_a_doubt(world: World, dies: str, effects: int) -> None:
    world.script.put(dies=dies)
    upstreams = [UpstreamSpec("billing", command=world.script.command)]
    async with world.gate(upstreams=upstreams) as gate, modern(gate) as client:
        calling = asyncio.create_task(client.call_tool("pay", ARGS))
        item_id = await world.decide(Approve())
        result = await calling
        assert result.is_error
        assert text_of(result) == (
            "The server 'billing' did not answer (Connection closed). Whether it took "
            "effect is unknown. Do not repeat it; tell the user that it has to be "
            "checked."
        )
        decision = (result.meta or {})[DECISION]
        assert decision == {"type": "unknown", "requested": ARGS}
        assert len(world.script.calls()) == effects
        await world.people.doubt(item_id)
        assert (await world.people.item(item_id)).state is ItemState.IN_DOUBT
        world.script.put()
        assert not (await client.call_tool("look_up", {})).is_error


async def test_an_absent_server_leaves_the_approval(world: World) -> None:
    port = free_port()
    app = make_server(world.script.folder).streamable_http_app
    upstreams = [UpstreamSpec("billing", url=f"http://127.0.0.1:{port}/mcp")]
    async with world.gate(upstreams=upstreams) as gate, modern(gate) as client:
        async with http_server(app(), port):
            calling = asyncio.create_task(client.call_tool("pay", ARGS))
            [item_id] = await world.asked()
        await world.people.decide(item_id, Approve())
        result = await calling
        assert result.is_error
        assert "Nothing ran" in text_of(result)
        item = await world.people.item(item_id)
        assert item.state is ItemState.AUTHORIZED
        async with http_server(app(), port):
            assert not (await client.call_tool("pay", ARGS)).is_error
    assert await world.cards() == 1
    assert len(world.script.calls()) == 1


async def test_an_unrecorded_result_arrives(world: World) -> None:
    is_away = True

    async def away(path: str) -> web.Response | None:
        return web.Response(status=502) if is_away and path == "finish" else None

    world.seen.before = away
    async with world.gate() as gate, modern(gate) as client:
        calling = asyncio.create_task(client.call_tool("pay", ARGS))
        item_id = await world.decide(Approve())
        assert (await calling).structured_content == {"paid": 5, "to": "ada"}
        assert (await world.people.item(item_id)).state is ItemState.EXECUTING
        is_away = False

        async def is_recorded() -> bool:
            return (await world.people.item(item_id)).state is ItemState.EXECUTED

        await eventually(is_recorded)
    assert len(world.script.calls()) == 1


@pytest.mark.parametrize(
    ("path", "tool"),
    [("submit", "pay"), ("outcomes", "pay"), ("claim", "pay"), ("submit", "look_up")],
)
async def test_an_outage_stops_every_call(world: World, path: str, tool: str) -> None:
    is_away = True

    async def away(name: str) -> web.Response | None:
        return web.Response(status=502) if is_away and name == path else None

    world.seen.before = away
    async with world.gate() as gate, modern(gate) as client:
        calling = asyncio.create_task(client.call_tool(tool, ARGS))
        if path == "claim":
            await world.decide(Approve())
        result = await calling
        assert result.is_error
        assert "Nothing ran: the approval gateway does not answer" in text_of(result)
        assert not world.script.calls()
        # It is the same call, once the gateway is back.
        is_away = False
        calling = asyncio.create_task(client.call_tool(tool, ARGS))
        if tool == "pay" and path != "claim":
            await world.decide(Approve())
        assert not (await calling).is_error
    assert len(world.script.calls()) == 1


async def test_a_wrong_key_is_told_apart_from_an_outage(world: World) -> None:
    world.key = world.stack.key(agents=["someone-else"])
    async with world.gate() as gate, modern(gate) as client:
        result = await client.call_tool("pay", ARGS)
    assert "does not accept this gate's API key" in text_of(result)
    assert not world.script.calls()


async def test_waiting_calls_get_decisions_after_an_outage(world: World) -> None:
    is_away = False

    async def away(name: str) -> web.Response | None:
        return web.Response(status=502) if is_away and name == "events" else None

    world.seen.before = away
    async with world.gate() as gate, modern(gate) as client:
        calling = asyncio.create_task(client.call_tool("pay", ARGS))
        [item_id] = await world.asked()
        is_away = True
        # The wait that was open already ends with this event.
        other = asyncio.create_task(client.call_tool("pay", {"to": "eve"}))
        [other_id] = [one for one in await world.asked(2) if one != item_id]
        await world.people.decide(other_id, Approve())
        await other
        count = world.seen.paths.count("events")
        await until(lambda: world.seen.paths.count("events") > count)
        await world.people.decide(item_id, Approve())
        is_away = False
        assert not (await calling).is_error


async def test_a_client_gets_the_tools_after_an_outage(world: World) -> None:
    is_away, heard = True, list[str]()

    async def away(_name: str) -> web.Response | None:
        return web.Response(status=502) if is_away else None

    async def hear(message: Any) -> None:
        heard.append(type(message).__name__)

    world.seen.before = away
    async with world.gate() as gate, legacy(gate, message_handler=hear) as client:
        assert [one.name for one in (await client.list_tools()).tools] == [WAIT]
        is_away = False
        await until(lambda: "ToolListChangedNotification" in heard)

        async def are_listed() -> bool:
            return len((await client.list_tools()).tools) > 1

        await eventually(are_listed)
