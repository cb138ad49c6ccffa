"""If a server accepts connections without answering, callers learn it in time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from slack_bolt.response import BoltResponse

from keyturn.bot import ingress, reviewers
from keyturn.bot.ids import COMMAND, Action
from keyturn.bot.ingress import Delivery, StoreNonces, handle_once
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from keyturn.sandbox import delivery
from keyturn.sandbox.client import UserActionFailed
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, Stack
from tests.conftest import eventually
from tests.store_secrets import SECRETS
from tests.tcp_proxy import Proxy

CLICKS = 20
DIGEST = "sha256:" + "5" * 64
FREEZE = "freeze tool process_refund wrong"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Slack give up before a call to the store does, as in production."""
    monkeypatch.setattr(ingress, "ANSWER_WITHIN_S", 1.3)
    monkeypatch.setattr(reviewers, "LOOKUP_TIMEOUT_S", 0.75)
    monkeypatch.setattr(delivery, "ACK_WITHIN_S", 8.0)


@pytest.fixture
async def wire(store: Store) -> AsyncIterator[Proxy]:
    """Return a proxy to the store of the test, which can be blocked."""
    async with Proxy(store.conn.url) as proxy:
        yield proxy


@pytest.fixture(params=["http", "socket"])
async def stack(wire: Proxy, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """Give a stack that reaches its store over the wire."""
    over = Store(wire.url, secrets=SECRETS, lease_ms=2000)
    async with Sandbox() as sandbox:
        yield Stack(sandbox, over, SlackMode(request.param))
    await over.close()


async def test_a_store_that_is_cut_off_fills_no_log_and_a_click_afterwards_counts(
    live: Stack, wire: Proxy, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    verdict = await live.refund()
    card = await live.card(verdict)

    async def click() -> None:
        ana = live.actor("U0ANA")
        with suppress(UserActionFailed):
            await ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)

    async def is_approved() -> bool:
        await click()
        item = await live.item(verdict)
        return item.state is ItemState.AUTHORIZED

    wire.lead_to("redis://127.0.0.1:1/0")
    wire.reset()
    caplog.clear()
    for _ in range(CLICKS):
        await click()
    await live.bot_is_quiet()
    lines = [one for one in caplog.records if one.levelno >= logging.WARNING]
    wire.lead_to(store.conn.url)
    await eventually(is_approved)

    assert lines, "an operator has to see it"
    assert [one.getMessage() for one in lines if one.exc_info] == []
    assert len(lines) <= 3 * CLICKS


@pytest.mark.parametrize("text", ["list", FREEZE])
async def test_an_outage_answers_commands(live: Stack, wire: Proxy, text: str) -> None:
    wire.close()

    await live.actor("U0ANA").command(COMMAND, text, CHANNEL)

    said = await live.told("U0ANA", "The gateway")
    wire.open()
    assert "cannot keep anything right now, so nothing was recorded" in said


@pytest.mark.parametrize("before", [0, 1])
async def test_a_click_has_a_reply_then(live: Stack, wire: Proxy, before: int) -> None:
    ana = live.actor("U0ANA")
    for _ in range(before):
        first = await live.card(await live.refund("t0", amount=1))
        await ana.click(CHANNEL, str(first["ts"]), Action.APPROVE)
    verdict = await live.refund()
    card = await live.card(verdict)
    await live.drawn(verdict)
    place = CHANNEL, str(card["ts"]), Action.APPROVE
    await live.bot_is_quiet()
    wire.close()

    await ana.click(*place)

    await live.told("U0ANA", "nothing was recorded")
    wire.open()
    await ana.click(*place)
    assert (await live.item(verdict)).state is ItemState.AUTHORIZED


async def test_a_late_envelope_is_handled_at_last(store: Store, wire: Proxy) -> None:
    """It was not processed, and Slack sends an unacknowledged one again."""
    over = Store(wire.url, secrets=SECRETS, lease_ms=2000)
    nonces, handled = StoreNonces(over, "default"), list[bool]()
    await nonces.is_first("sha256:" + "6" * 64)  # opens the connection

    async def handle(delivery: Delivery) -> BoltResponse:
        handled.append(delivery.is_recorded)
        return BoltResponse(status=200 if delivery.is_recorded else 503)

    async def comes() -> BoltResponse | None:
        return await handle_once(Delivery("{}", {}, DIGEST), nonces, handle)

    async def is_remembered() -> bool:
        name = store.keys_of_tenant("default").nonce(DIGEST)
        return bool(await store.conn.command("EXISTS", name))

    wire.close()
    await comes()
    wire.open()
    await eventually(is_remembered)

    assert await comes()
    assert handled == [False, True]
    assert await comes() is None
    await over.close()
