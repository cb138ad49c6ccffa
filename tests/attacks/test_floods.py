"""Many clicks, large bodies, slow clients: the bot answers, decides once, and stays."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack

import aiohttp
import pytest

from keyturn.bot import ingress
from keyturn.bot.ids import Action
from keyturn.gateway.store.connection.connection import Connection
from tests.attacks.attacker import click_payload, trace, value_of
from tests.bot.bot_stack import Stack
from tests.bot.signed import interaction, signed_headers
from tests.levels import size

CLICKS = size(deep=1000, short=200)
FEW = 20
SOON_S = 1.0


def place_of(stack: Stack) -> tuple[str, int]:
    assert stack.bot is not None
    host, _, port = stack.bot.url.split("/")[2].partition(":")
    return host, int(port)


@pytest.mark.slow
async def test_concurrent_clicks_decide_once(stack: Stack, unlimited: None) -> None:
    async with stack.running() as bot, aiohttp.ClientSession() as session:
        verdict = await stack.refund()
        card = await stack.card(verdict)
        approval = await stack.approval(verdict)
        actions = [Action.APPROVE, Action.EDIT, Action.REJECT, Action.RESPOND]
        people = ["U0ANA", "U0BEN", "U0CHLOE", "U0DAN", "U0EVE"]

        async def click(number: int) -> int:
            action = actions[number % len(actions)] if number % 3 else Action.APPROVE
            user = people[number % len(people)]
            value = value_of(stack, approval, action)
            payload = click_payload(card["ts"], action, value, user=user)
            body = interaction({**payload, "trigger_id": f"{number}.2.3"})
            headers = signed_headers(stack.sandbox.signing_secret, body)
            async with session.post(bot.url, data=body, headers=headers) as answer:
                return answer.status

        statuses = Counter(await asyncio.gather(*map(click, range(CLICKS))))

        found = await trace(stack, verdict)
        assert statuses == {200: CLICKS}
        assert (found.approval.rev, found.jobs, found.audit) == (2, 1, 2)
        assert len(found.approval.items[0].votes) == 1


HEAD = b"POST /slack/events HTTP/1.1\r\nHost: x\r\n"


async def is_healthy(stack: Stack) -> bool:
    """Return whether an honest client is served soon."""
    host, port = place_of(stack)
    began = time.monotonic()
    try:
        async with (
            asyncio.timeout(SOON_S),
            aiohttp.ClientSession() as session,
            session.get(f"http://{host}:{port}/healthz") as answer,
        ):
            return answer.status == 200 and time.monotonic() - began < SOON_S
    except (aiohttp.ClientError, TimeoutError):
        return False


HOLD = {
    "silence": b"",
    "half a header": HEAD,
    "half a body": HEAD + b"Content-Length: 9\r\n\r\nab",
    "kept alive": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("held", HOLD)
async def test_clients_that_only_hold_connections_keep_nobody_else_out(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    monkeypatch.setattr(ingress, "MAX_CONNECTIONS", FEW)
    async with stack.running(), AsyncExitStack() as opened:
        for _ in range(2 * FEW):
            _, writer = await asyncio.open_connection(*place_of(stack))
            opened.callback(writer.close)
            writer.write(HOLD[held])
        await asyncio.sleep(0)

        assert await is_healthy(stack)


async def test_a_cancellation_is_never_lost_in_the_store(valkey_url: str) -> None:
    """A lost cancellation leaves a heartbeat running, and its waiter waits forever.

    Until Python 3.12 `asyncio.wait_for` drops a cancellation that comes as the inner
    task ends (cpython#86296). So no call on the way to the store may use it.
    """
    lost = 0
    for steps in range(40):
        conn = Connection(valkey_url)
        task = asyncio.create_task(finished(conn))
        for _ in range(steps):
            await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            [end] = await asyncio.gather(task, return_exceptions=True)
            lost += end == "finished"
        await conn.close()

    assert lost == 0


async def finished(conn: Connection) -> str:
    await conn.command("PING")
    return "finished"
