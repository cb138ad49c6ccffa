"""Request calls from the agent, and decide them, as people do in Slack."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from keyturn.bot.ids import Action, Input
from keyturn.gateway.approvals.decisions import AccountKind, Click, Reconcile, Reviewer
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.errors import KeyturnError, StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.connection.connection import text
from keyturn.sandbox.client import UserActionFailed
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import has_button
from tests.chaos.stack import Stack
from tests.lifetimes import listed

CHANNEL = "C0APPROVALS"
ASKER = "U0DAN"
TEAM = "T0SANDBOX"
TOOLS = ("refund", "refund", "email", "ping", "count")
REVIEWERS = ("U0ANA", "U0BEN")
LOOK_S = 0.5
FORM_S = 3.0
REJECTED = 0.2


@dataclass
class People:
    """Dan asks; Ana and Ben decide, and reject now and then.

    Attributes:
        asked: how many messages were sent to the agent.
        clicks: how many of each button.
    """

    stack: Stack
    dice: random.Random
    asked: int = 0
    clicks: Counter[str] = field(default_factory=Counter[str])

    async def ask(self) -> None:
        """Request one to three calls from the agent, each about a separate order."""
        calls: list[tuple[str, dict[str, str]]] = []
        self.asked += 1
        for number in range(self.dice.randint(1, 3)):
            order = f"o{self.asked}.{number}"
            calls.append((self.dice.choice(TOOLS), {"order": order}))
        with suppress(UserActionFailed):
            await self._say(calls)

    async def ask_for_a_refund(self) -> str:
        """Ask for one call that waits for people; return the message's ts."""
        self.asked += 1
        return await self._say([("refund", {"order": f"o{self.asked}.0"})])

    async def _say(self, calls: list[tuple[str, dict[str, str]]]) -> str:
        said = f"@keyturn {json.dumps(calls)}"
        return await self.stack.sandbox.person(ASKER).say(CHANNEL, said)

    async def waits_in(self, thread: str) -> bool:
        """Return whether a call of this thread is pending."""
        found = await self.approvals()
        return any(
            one.thread.endswith(thread) and one.state is ApprovalState.OPEN
            for one in found
        )

    async def decide_forever(self) -> None:
        """Click on every card with buttons, sometimes twice at once."""
        while True:
            # The store may have been killed; it is started again.
            with suppress(StoreUnavailable):
                await self.decide()
            await asyncio.sleep(LOOK_S)

    async def decide(self) -> None:
        """Click once on every card that can be decided, and reconcile every doubt."""
        for card in await self.cards():
            await self.press(card)
        for approval in await self.approvals():
            for item in approval.items:
                if item.state is ItemState.IN_DOUBT:
                    await self._settle(approval, item.index)

    async def press(self, card: JsonObject) -> None:
        """Approve or reject what a card shows, sometimes by two clicks at once."""
        if has_button(card, Action.REJECT) and self.dice.random() < REJECTED:
            await self._reject(card)
            return
        both = has_button(card, Action.APPROVE_ALL)
        action = Action.APPROVE_ALL if both else Action.APPROVE
        times = self.dice.choice((1, 1, 1, 2))
        await asyncio.gather(*(self._click(card, action) for _ in range(times)))

    async def cards(self) -> list[JsonObject]:
        """Return the messages on which a call can still be approved."""
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
        [block, *_] = [
            str(block["block_id"])
            for block in as_objects(card["blocks"])
            if block["type"] == "actions"
            for element in as_objects(block["elements"])
            if element["action_id"] == action
        ]
        self.clicks[action.value] += 1
        who = self.stack.sandbox.person(self.dice.choice(REVIEWERS))
        with suppress(UserActionFailed):
            await who.click(CHANNEL, str(card["ts"]), action, block)

    async def _reject(self, card: JsonObject) -> None:
        """Reject a call in its form; the bot may be away before it opens or is sent."""
        who = self.stack.sandbox.person(self.dice.choice(REVIEWERS))
        self.clicks[Action.REJECT.value] += 1
        with suppress(UserActionFailed, TimeoutError):
            await who.click(CHANNEL, str(card["ts"]), Action.REJECT)
            await who.wait_for_view(timeout_s=FORM_S)
            await who.submit({Input.REASON: "not today"})
        with suppress(UserActionFailed):
            await who.close_view(clear=True)

    async def _settle(self, approval: Approval, index: int) -> None:
        """Reconcile a doubt as executed; the file of effects has the truth."""
        policy = load_policy(self.stack.policy, "policy.yml")
        service = ReviewService(self.stack.store, lambda: policy)
        click = Click(
            approval=approval.id,
            index=index,
            version=approval.version,
            action_hash=approval.items[index].action_hash,
        )
        people = [
            Reviewer(team=TEAM, user=user, name=user, account=AccountKind.MEMBER)
            for user in REVIEWERS
        ]

        async def voters(_: Item) -> list[Reviewer]:
            return people

        ran = Reconcile(finding=Finding.EXECUTED)
        for who in people:
            with suppress(KeyturnError):
                await service.decide(click, ran, who, voters=voters)
