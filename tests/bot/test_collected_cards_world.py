"""Collected cards survive concurrent people, clocks, stores and Slack."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from keyturn.bot.ids import Action
from keyturn.bot.web import Slack
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.store import Store
from keyturn.sandbox.client import UserActionFailed
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, Stack, has_button
from tests.bot.tampering import expire
from tests.bot.test_collected_cards import batched, cards, posted, shown, states, three
from tests.bot.test_fault_storm import Storm, passing
from tests.bot.test_publisher import nothing_is_left
from tests.conftest import eventually
from tests.levels import sample

CALLS = 30


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.policy = batched("within: 10m, up_to: 3")
    return stack


async def test_calls_that_all_expire_at_once_take_the_buttons_along(
    stack: Stack,
) -> None:
    async with stack.running():
        verdicts, ts = await three(stack)
        for verdict in verdicts:
            await expire(stack, await stack.approval(verdict))

        # Late, and before a sweep.
        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)
        await stack.sweeper.sweep()

        card = await shown(stack, "3 expired")
        assert not has_button(card, Action.APPROVE_ALL)
        assert await states(stack, verdicts) == ["expired"] * 3
        await nothing_is_left(stack)
        updates = [one for one in stack.sandbox.calls if one.method == "chat.update"]
        assert len(updates) <= 3


@pytest.fixture
async def stormy(store: Store) -> AsyncIterator[Stack]:
    """Give a stack over sockets, whose requests no moved clock makes too late."""
    async with Sandbox() as sandbox:
        made = Stack(sandbox, store, SlackMode.SOCKET)
        made.policy = batched("within: 10m, up_to: 3")
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample([1, 2, 3], 1))
async def test_in_a_storm_every_call_is_on_a_card_and_runs_once(
    stormy: Stack, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    stack = stormy
    storm = Storm(seed)
    monkeypatch.setattr(Slack, "call", storm.over(Slack.call))
    monkeypatch.setattr(Slack, "ask", storm.over(Slack.ask))
    async with stack.running():
        clock = asyncio.create_task(passing(stack))
        verdicts = [await stack.refund(f"t{n}", amount=100 + n) for n in range(CALLS)]
        await decide_all(stack, verdicts)
        for one in verdicts:
            await stack.execute(one)
        storm.is_over = True

        async def is_true() -> bool:
            ids = [(await stack.approval(one)).id for one in verdicts]
            places = [await stack.store.cards.place(stack.keys, one) for one in ids]
            usable = {(place.channel, place.ts) for place in places if place}
            found = [m for m in await cards(stack) if (CHANNEL, m["ts"]) in usable]
            return None not in places and all("done" in str(m["text"]) for m in found)

        await eventually(is_true)
        await nothing_is_left(stack)
        clock.cancel()

    assert await states(stack, verdicts) == ["executed"] * CALLS
    assert storm.hits.keys() == {"lost", "limited", "broken"}


async def decide_all(stack: Stack, verdicts: list[Verdict]) -> None:
    """Click on every visible card, until every call is decided."""
    while "pending" in await states(stack, verdicts):
        for message in await posted(stack):
            for action in (Action.APPROVE_ALL, Action.APPROVE):
                if has_button(message, action):
                    try:
                        await stack.actor("U0ANA").click(
                            CHANNEL, str(message["ts"]), action
                        )
                    except UserActionFailed:
                        continue  # the message changed in between
        await asyncio.sleep(0.01)
