"""In a storm of faults one card and one copy for each person count, and are true.

Three of ten answers of Slack are lost, one in ten calls is refused for its rate, and
one in ten fails with a server error, while people decide on any visible card.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from keyturn.bot.ids import Action
from keyturn.bot.limits import HISTORY, OPEN_DM, POST, UPDATE
from keyturn.bot.listeners.usable_copy import is_usable_copy
from keyturn.bot.web import RateLimited, Slack, SlackNoResponse
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.client import UserActionFailed
from tests.bot.bot_stack import CHANNEL, Stack, has_button, is_card_of
from tests.bot.test_personal_copies import block_action
from tests.conftest import eventually
from tests.levels import sample

CALLS = 12
TWO_BY_DM = (
    "support: {usergroups: [S0SUPPORT], users: [U0DAN]}",
    "support: {users: [U0ANA, U0BEN], notify: dm}",
)
PLACES = {"U0ANA": "D0ANA", "U0BEN": "D0BEN"}
LOST, LIMITED, BROKEN = 0.3, 0.4, 0.5


@pytest.fixture
def transport() -> SlackMode:
    """Choose sockets: the slower the machine, the further `passing` goes.

    A signed request of more than five minutes later than the store's clock is refused.
    """
    return SlackMode.SOCKET


class Storm:
    """What goes wrong between the bot and Slack, until it is over."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(seed)  # noqa: S311 - a fixed seed, not a secret
        self.is_over = False
        self.hits = Counter[str]()
        # Each kind once before luck decides: it may leave one out.
        self._first = iter((0.0, LOST, LIMITED))

    def over(self, call: Any) -> Any:
        """Return Slack's client in the storm."""

        async def called(slack: Slack, method: str, **arguments: Any) -> Any:
            if self.is_over or method not in {POST, UPDATE, OPEN_DM, HISTORY}:
                return await call(slack, method, **arguments)
            drawn = next(self._first, None)
            if drawn is None:
                drawn = self.luck.random()
            if drawn < LOST:
                await call(slack, method, **arguments)
                self.hits["lost"] += 1
                raise SlackNoResponse(method, "its answer was lost")
            if drawn < LIMITED:
                self.hits["limited"] += 1
                raise RateLimited(method, 1.0)
            if drawn < BROKEN:
                self.hits["broken"] += 1
                raise SlackNoResponse(method, "status 503")
            return await call(slack, method, **arguments)

        return called


async def passing(stack: Stack) -> None:
    """Let the time of Slack and the bot pass faster."""
    while True:
        await asyncio.sleep(0.02)
        stack.sandbox.control.advance(1.0)


async def decide(stack: Stack, storm: Storm, verdict: Verdict) -> None:
    """Click on every visible card, until a click counts."""
    approval = (await stack.approval(verdict)).id
    while (await stack.item(verdict)).is_pending:
        user = storm.luck.choice([*PLACES])
        channel = storm.luck.choice([CHANNEL, PLACES[user]])
        shown = [m for m in await stack.actor(user).messages(channel) if m["blocks"]]
        found = [m for m in shown if is_card_of(m, approval)]
        for message in found:
            if has_button(message, Action.APPROVE):
                try:
                    await stack.actor(user).click(
                        channel, str(message["ts"]), Action.APPROVE
                    )
                except UserActionFailed:
                    continue  # the message changed in between
        await asyncio.sleep(0.01)


async def usable(stack: Stack, verdict: Verdict) -> Counter[str]:
    """Count, by channel, the messages on which a click would count; they are true.

    Nor is there any other direct message.
    """
    approval = await stack.approval(verdict)
    ctx: Any = SimpleNamespace(service=stack.reviews, config=stack.config)
    found = Counter[str]()
    for user, direct in PLACES.items():
        for channel in (CHANNEL, direct):
            for message in await stack.actor(user).messages(channel):
                if not (message["blocks"] and is_card_of(message, approval.id)):
                    continue
                action = block_action(user, channel, str(message["ts"]))
                place = await stack.store.cards.place(stack.keys, approval.id)
                is_usable = await is_usable_copy(
                    ctx, action, stack.keys, approval.id, place
                )
                if is_usable:
                    found[f"{user} {channel}"] += 1
                if is_usable or channel == direct:
                    assert ", done " in str(message["blocks"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample([1, 2, 3], 1))
async def test_in_a_storm_each_person_has_one_usable_card_and_it_is_true(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    stack.put_policy(TWO_BY_DM)
    storm = Storm(seed)
    monkeypatch.setattr(Slack, "call", storm.over(Slack.call))
    monkeypatch.setattr(Slack, "ask", storm.over(Slack.ask))
    async with stack.running():
        clock = asyncio.create_task(passing(stack))
        verdicts = [await stack.refund(thread=f"t{n}") for n in range(CALLS)]
        await asyncio.gather(*(decide(stack, storm, one) for one in verdicts))
        for one in verdicts:
            # No decision without a card: a click counts on a registered message only.
            assert (await stack.drawn(one)).ts
            await stack.execute(one)
        storm.is_over = True

        for one in verdicts:

            async def is_true(one: Verdict = one) -> bool:
                place = await stack.drawn(one)
                copies = place.copies.values()
                return all(copy.rev == place.rev for copy in copies if copy.ts)

            await eventually(is_true)
        await stack.nothing_is_left()
        clock.cancel()

    for one in verdicts:
        item = await stack.item(one)
        assert (item.state, len(item.votes)) == (ItemState.EXECUTED, 1)
        counted = await usable(stack, one)
        assert counted[f"U0ANA {CHANNEL}"] == counted[f"U0BEN {CHANNEL}"] == 1
        assert max(counted.values()) == 1
    assert storm.hits.keys() == {"lost", "limited", "broken"}
