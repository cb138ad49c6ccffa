"""Socket Mode comes back by itself, however its connections were lost."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.bot import ingress
from keyturn.bot.ids import Action
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.records import ItemState
from keyturn.sandbox.socket_mode import TICKET_LIFE_S
from tests.bot.bot_stack import Stack
from tests.conftest import eventually

OPEN = "apps.connections.open"


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress, "PING_S", 0.2)


async def click_counts(stack: Stack) -> None:
    verdict = await stack.refund()
    await stack.click(verdict, Action.APPROVE)
    assert (await stack.item(verdict)).state is ItemState.AUTHORIZED


def opened(stack: Stack) -> int:
    """Return how often an address for a socket was asked for."""
    return [one.method for one in stack.sandbox.calls].count(OPEN)


@pytest.mark.parametrize("how", ["dropped", "asked"])
async def test_an_old_address_is_not_tried_for_ever(stack: Stack, how: str) -> None:
    """Slack returns addresses without a server, until they have ended."""
    control = stack.sandbox.control
    async with stack.running(mode=SlackMode.SOCKET):
        control.refuse_sockets(enabled=True)
        before = opened(stack)
        if how == "dropped":
            control.drop()
        else:
            await control.disconnect()
            control.drop()

        await eventually(lambda: opened(stack) >= before + 2)
        control.advance(TICKET_LIFE_S + 1)
        control.refuse_sockets(enabled=False)

        await eventually(lambda: len(control.sockets.connections) == 2)
        await click_counts(stack)


async def test_a_start_without_anybody_at_the_addresses_goes_on_when_somebody_is(
    stack: Stack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress, "CONNECT_S", 0.2)
    control = stack.sandbox.control
    control.refuse_sockets(enabled=True)

    async def start() -> None:
        async with stack.running(mode=SlackMode.SOCKET):
            await click_counts(stack)

    starting = asyncio.create_task(start())

    await eventually(lambda: "bot.waits_for_slack" in caplog.text)
    control.advance(TICKET_LIFE_S + 1)
    control.refuse_sockets(enabled=False)
    await starting
    assert "ticket=" not in caplog.text
