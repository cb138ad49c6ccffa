"""Socket Mode: tickets, several connections, refreshes and sudden ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from keyturn.sandbox.client import Person, UserActionFailed
from keyturn.sandbox.server import Sandbox
from keyturn.sandbox.socket_mode import CONNECTIONS
from tests.sandbox.blocks import card
from tests.sandbox.bolt_app import RunningApp, until

APPROVALS = "C0APPROVALS"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def connected(
    sandbox: Sandbox, client: Any, session: aiohttp.ClientSession
) -> tuple[aiohttp.ClientWebSocketResponse, dict[str, Any]]:
    """Open a bare socket and return it with its first message."""
    answer = await client.apps_connections_open(app_token=sandbox.app_token)
    socket = await session.ws_connect(answer["url"])
    return socket, await socket.receive_json(timeout=30)


async def posted(client: Any) -> str:
    answer = await client.chat_postMessage(
        channel=APPROVALS, text="t", blocks=card("one")
    )
    return str(answer["ts"])


async def test_a_socket_says_hello_and_takes_an_answer_in_its_ack(
    sandbox: Sandbox, client: Any, ana: Person, session: aiohttp.ClientSession
) -> None:
    socket, hello = await connected(sandbox, client, session)

    command = asyncio.create_task(ana.command("/approvals", "list", APPROVALS))
    envelope = await socket.receive_json(timeout=30)
    await socket.send_str("not json")
    await socket.send_json({"envelope_id": "unknown"})
    await socket.send_json(
        {"envelope_id": envelope["envelope_id"], "payload": {"text": "none"}}
    )
    await command

    assert hello["type"] == "hello"
    assert hello["num_connections"] == 1
    assert envelope["type"] == "slash_commands"
    assert envelope["accepts_response_payload"] is True
    assert envelope["payload"]["text"] == "list"
    (answer,) = await ana.ephemerals(APPROVALS)
    assert answer["text"] == "none"


async def test_a_ticket_opens_one_socket_and_soon(
    sandbox: Sandbox, client: Any, session: aiohttp.ClientSession
) -> None:
    first = await client.apps_connections_open(app_token=sandbox.app_token)
    second = await client.apps_connections_open(app_token=sandbox.app_token)
    await session.ws_connect(first["url"])
    sandbox.clock.advance(31)

    for url in (first["url"], second["url"]):
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(url)


async def test_an_eleventh_socket_is_sent_away(
    sandbox: Sandbox, client: Any, session: aiohttp.ClientSession
) -> None:
    kept = [await connected(sandbox, client, session) for _ in range(CONNECTIONS)]

    _, greeting = await connected(sandbox, client, session)

    assert greeting["type"] == "disconnect"
    assert greeting["reason"] == "too_many_websockets"
    assert not any(socket.closed for socket, _ in kept)


@pytest.mark.parametrize("how", ["disconnect", "drop"])
async def test_a_real_app_comes_back_after_losing_its_socket(
    sandbox: Sandbox, socket_app: RunningApp, ana: Person, how: str
) -> None:
    @socket_app.on("action", "approve")
    async def approve(ack: Any) -> None:
        await ack()

    ts = await posted(socket_app.client)
    first = sandbox.control.sockets.connections[0]

    await sandbox.control.run({"do": how})

    await until(
        lambda: any(
            connection is not first and not connection.closing
            for connection in sandbox.control.sockets.connections
        )
    )
    await ana.click(APPROVALS, ts, "approve")


async def test_a_socket_cut_before_its_ack_leaves_the_person_with_a_warning(
    sandbox: Sandbox, client: Any, ana: Person, session: aiohttp.ClientSession
) -> None:
    socket, _ = await connected(sandbox, client, session)
    ts = await posted(client)

    click = asyncio.create_task(ana.click(APPROVALS, ts, "approve"))
    await socket.receive_json(timeout=30)
    sandbox.control.drop()

    with pytest.raises(UserActionFailed) as caught:
        await click
    assert caught.value.answer["reason"] == "connection_failed"
    await socket.close()
