"""Ask the agent, and decide what it asks, as people do: through Slack, with doubts."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from bot.ids import Action
from bot.sandbox.client import GestureFailed
from bot.sandbox.json_types import JsonObject, as_objects
from gateway.approvals.decisions import Click, Reconcile, Reviewer, Standing
from gateway.approvals.lifecycle import ItemState
from gateway.approvals.record import Approval, Finding
from gateway.errors import TwokeyError
from gateway.policy.load import load_policy
from gateway.service.reviews import ReviewService
from gateway.store.connection import text
from tests.bot.bot_house import has_button
from tests.chaos.agent import POLICY
from tests.chaos.stack import Stack
from tests.lifetimes import listed

CHANNEL = "C0APPROVALS"
TOOLS = ("refund", "refund", "email", "ping", "count")
REVIEWERS = ("U0ANA", "U0BEN")
LOOK_S = 0.5


@dataclass
class People:
    """Dan asks; Ana and Ben decide.

    Attributes:
        asked: how many messages were sent to the agent.
        clicks: how many of each button.
    """

    stack: Stack
    dice: random.Random
    asked: int = 0
    clicks: Counter[str] = field(default_factory=Counter[str])

    async def ask(self) -> None:
        """Ask the agent for one to three calls, each about an order of its own."""
        calls: list[tuple[str, dict[str, str]]] = []
        self.asked += 1
        for number in range(self.dice.randint(1, 3)):
            order = f"o{self.asked}.{number}"
            calls.append((self.dice.choice(TOOLS), {"order": order}))
        said = f"@twokey {json.dumps(calls)}"
        with suppress(GestureFailed):
            await self.stack.sandbox.person("U0DAN").say(CHANNEL, said)

    async def decide_forever(self) -> None:
        """Click on whatever card has buttons, sometimes twice at once."""
        while True:
            await self.decide()
            await asyncio.sleep(LOOK_S)

    async def decide(self) -> None:
        """Click once on every card that can be decided, and settle every doubt."""
        for card in await self.cards():
            both = has_button(card, Action.APPROVE_ALL)
            action = Action.APPROVE_ALL if both else Action.APPROVE
            times = self.dice.choice((1, 1, 1, 2))
            await asyncio.gather(*(self._click(card, action) for _ in range(times)))
        for approval in await self.approvals():
            for item in approval.items:
                if item.state is ItemState.IN_DOUBT:
                    await self._settle(approval, item.index)

    async def cards(self) -> list[JsonObject]:
        """Return the messages that anybody can still approve."""
        messages = await self.stack.sandbox.person("U0ANA").messages(CHANNEL)
        buttons = (Action.APPROVE, Action.APPROVE_ALL)
        return [m for m in messages if any(has_button(m, one) for one in buttons)]

    async def approvals(self) -> list[Approval]:
        """Return every approval that there is."""
        store = self.stack.store
        keys = store.keys_of_tenant("default")
        names = listed(await store.conn.command("KEYS", keys.head("*")))
        ids = [text(name).rpartition(":")[2] for name in names]
        return [one.approval for one in await store.approvals.load_each(ids)]

    async def _click(self, card: JsonObject, action: Action) -> None:
        row = [
            element
            for block in as_objects(card["blocks"])
            if block["type"] == "actions"
            for element in as_objects(block["elements"])
            if element["action_id"] == action
        ]
        self.clicks[action.value] += 1
        who = self.stack.sandbox.person(self.dice.choice(REVIEWERS))
        blocks = [
            str(block["block_id"])
            for block in as_objects(card["blocks"])
            if block["type"] == "actions" and row[0] in as_objects(block["elements"])
        ]
        with suppress(GestureFailed):
            await who.click(CHANNEL, str(card["ts"]), action, blocks[0])

    async def _settle(self, approval: Approval, index: int) -> None:
        """Say of a doubt that the call ran; the file of effects has the truth."""
        policy = load_policy(POLICY.format(expires="3h"), "policy.yml")
        service = ReviewService(self.stack.store, lambda: policy)
        click = Click(
            approval=approval.id,
            index=index,
            version=approval.version,
            action_hash=approval.items[index].action_hash,
        )
        ana = Reviewer(team="T0", user="U0ANA", name="Ana", standing=Standing.MEMBER)
        with suppress(TwokeyError):
            await service.decide(click, Reconcile(finding=Finding.EXECUTED), ana)
