"""A gate over streamable HTTP: sessions, people with tokens, hosts, closed streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from keyturn.connect.gate import HttpGate
from keyturn.connect.mcp.server import GateServer
from keyturn.connect.mcp.serving import Tokens, http_app, signed_in
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service_settings import Address
from tests.api.issuer import SETTINGS, Issuer
from tests.connect.mcp.conftest import (
    LONG_S,
    SHORT_S,
    World,
    http_server,
    until,
)
from tests.connect.mcp.test_waiting import ticket_of
from tests.service.harness import BEN

ARGS = {"to": "ada", "amount": 5}
HERE = Address("127.0.0.1", 1)


@asynccontextmanager
async def served(
    world: World, hold_s: float = LONG_S, *, issuer: Issuer | None = None
) -> AsyncGenerator[tuple[str, GateServer]]:
    """Serve a gate; with an issuer, for the people of its tokens."""
    gateway = HttpGate(world.stack.url, world.key)
    tokens = Tokens(SETTINGS, gateway, fetch=issuer.fetch) if issuer else None
    async with (
        world.gate(hold_s, caller=signed_in if issuer else None) as server,
        http_server(http_app(server, HERE, tokens=tokens)) as url,
    ):
        yield f"{url}/mcp", server
    await gateway.aclose()


@asynccontextmanager
async def connected(
    url: str, mode: str = "auto", token: str = ""
) -> AsyncGenerator[Client]:
    """Connect a client over HTTP."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(
            streamable_http_client(url, http_client=http), mode=mode, cache=None
        ) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_approved_call_runs_once_over_http(world: World, mode: str) -> None:
    async with served(world) as (url, _), connected(url, mode) as client:
        calling = asyncio.create_task(client.call_tool("pay", ARGS))
        await world.decide(Approve())
        assert (await calling).structured_content == {"paid": 5, "to": "ada"}
    assert len(world.script.calls()) == 1


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_tokens_person_is_the_requester(world: World, mode: str) -> None:
    issuer = Issuer()
    async with (
        served(world, issuer=issuer) as (url, _),
        connected(url, mode, issuer.token("ana")) as client,
    ):
        calling = asyncio.create_task(client.call_tool("pay", ARGS))
        [item_id] = await world.asked()
        refused = await world.people.decide(item_id, Approve())
        assert refused.kind == "forbidden"
        await world.people.decide(item_id, Approve(), BEN)
        assert not (await calling).is_error
    [call] = world.script.calls()
    assert "authorization" not in call["headers"]


async def test_a_request_without_a_person_is_refused(world: World) -> None:
    issuer = Issuer()
    tokens = ["", "garbage", issuer.token("stranger"), issuer.token(aud="other")]
    async with served(world, issuer=issuer) as (url, _), httpx.AsyncClient() as client:
        for token in tokens:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            answer = await client.post(url, json=call_of("pay"), headers=headers)
            assert answer.status_code == 401
            assert "resource_metadata=" in answer.headers["WWW-Authenticate"]
    assert await world.cards() == 0


async def test_the_ticket_of_a_person_is_of_no_use_to_another(world: World) -> None:
    issuer = Issuer()
    async with served(world, SHORT_S, issuer=issuer) as (url, _):
        async with connected(url, "legacy", issuer.token("ana")) as client:
            ticket = ticket_of(await client.call_tool("pay", ARGS))
        async with connected(url, "legacy", issuer.token("ben")) as client:
            found = await client.call_tool("keyturn_wait", {"ticket": ticket})
            assert "no ticket of yours" in str(found.content)


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}]
)
async def test_another_host_cannot_call(world: World, headers: dict[str, str]) -> None:
    async with served(world) as (url, _), httpx.AsyncClient() as client:
        answer = await client.post(url, json=call_of("pay"), headers=headers)
    assert answer.status_code in {403, 421}
    assert await world.cards() == 0


async def test_another_machine_needs_tls_and_people(world: World) -> None:
    gateway = HttpGate(world.stack.url, world.key)
    tokens = Tokens(SETTINGS, gateway, fetch=Issuer().fetch)
    open_to_all = Address("192.0.2.7", 8790)
    async with world.gate() as server:
        for options in (
            {},
            {"tokens": tokens},
            {"url": "https://gate.example/mcp"},
            {"url": "http://gate.example/mcp", "tokens": tokens},
        ):
            given: Any = options
            with pytest.raises(SettingsError, match="other machines"):
                http_app(server, open_to_all, **given)
        http_app(server, open_to_all, url="https://gate.example/mcp", tokens=tokens)
    await gateway.aclose()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_closed_request_runs_nothing(world: World, mode: str) -> None:
    async with served(world) as (url, server):
        async with connected(url, mode) as client:
            calling = asyncio.create_task(client.call_tool("pay", ARGS))
            await world.asked()
            # As a killed client does: no farewell.
            calling.cancel()
        await until(lambda: not any(one.waiting for one in server.calls.all()))
        item_id = await world.decide(Approve())
        async with connected(url, mode) as client:
            assert (await world.people.item(item_id)).state is ItemState.AUTHORIZED
            result = await client.call_tool("pay", ARGS)
        assert result.structured_content == {"paid": 5, "to": "ada"}
    assert await world.cards() == 1
    assert len(world.script.calls()) == 1


async def test_a_request_that_is_cut_off_has_no_caller(world: World) -> None:
    headers = {"Accept": "application/json, text/event-stream"}
    async with served(world) as (url, server):
        async with httpx.AsyncClient(timeout=60, headers=headers) as client:
            session = await shaken(client, url)
            calling = asyncio.create_task(
                client.post(url, json=call_of("pay", ARGS), headers=session)
            )
            await world.asked()
            calling.cancel()
        await until(lambda: not any(one.waiting for one in server.calls.all()))
        await world.decide(Approve())
        async with connected(url, "legacy") as client_again:
            await client_again.call_tool("pay", ARGS)
    assert len(world.script.calls()) == 1


def call_of(tool: str, args: Any = None) -> dict[str, Any]:
    """Return the message of a call."""
    params: Any = {"name": tool, "arguments": args or {}}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


async def shaken(client: httpx.AsyncClient, url: str) -> dict[str, str]:
    """Shake hands as a client of the year before; return the session's header."""
    about = {"name": "raw", "version": "1"}
    version: Any = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {**version, "clientInfo": about},
    }
    answer = await client.post(url, json=hello)
    session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await client.post(url, json=done, headers=session)
    return session
