"""Run the shipped weekend policy for real: agent, store, bot, clicks.

The store's clock cannot be set. So the policy is moved to a time zone in which it is
now the hour of the story, and earlier refunds are made older, instead of waiting.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from keyturn.bot.cards.channel_messages import agent_answer
from keyturn.bot.ids import CARD_EVENT, Action, Input
from keyturn.cli.demo_stack import DemoStack, open_demo_stack
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.config import SlackMode
from keyturn.gateway.store.connection.connection import text
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects
from keyturn.sandbox.records import Channel, User
from keyturn.sandbox.samples import TEAM
from keyturn.sandbox.workspace import Workspace
from tests.lifetimes import listed
from tests.patience import lift_limits

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "examples" / "weekend_policy.yml"
GRAPH = ROOT / "tests" / "stories" / "weekend_agent.py"
HOME = "Europe/London"
CHANNEL = "C0WEEKEND"
ASKER, ANA, BEN, LEAD = "U0DAN", "U0ANA", "U0BEN", "U0LEAD"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Weekend:
    """A weekend at the shop: people's requests to the agent, and their decisions."""

    demo: DemoStack

    async def ask(self, tool: str, **args: object) -> str:
        """Request one call from the agent as Dan; return the ts of his message."""
        words = json.dumps([[tool, args]])
        dan = self.demo.sandbox.person(ASKER)
        return await dan.say(CHANNEL, f"@keyturn {words}")

    async def card(self, tool: str, **args: object) -> JsonObject:
        """Ask for a call that people have to decide; return its card."""
        asked = await self.ask(tool, **args)

        def is_new(message: JsonObject) -> bool:
            return bool(_approval_of(message)) and str(message["ts"]) > asked

        return await self._message(is_new)

    async def words(self, tool: str, **args: object) -> str:
        """Request a call without deciding it; return the agent's message about it."""
        asked = await self.ask(tool, **args)

        def is_answer(message: JsonObject) -> bool:
            is_last = message["text"] == agent_answer("").text
            return is_last and message.get("thread_ts") == asked

        return _text_of(await self._message(is_answer))

    async def approve(self, card: JsonObject, *people: str, until: str) -> JsonObject:
        """Click Approve, one person after another; wait until the card shows it."""
        for person in people:
            actor = self.demo.sandbox.person(person)
            await actor.click(CHANNEL, str(card["ts"]), Action.APPROVE)
        return await self.says(card, until)

    async def reject(self, card: JsonObject, person: str) -> None:
        """Reject a call with a reason, and wait until the card shows it."""
        actor = self.demo.sandbox.person(person)
        await actor.click(CHANNEL, str(card["ts"]), Action.REJECT)
        await actor.wait_for_view(timeout_s=PATIENCE_S)
        await actor.submit({Input.REASON: "Not this one."})
        await self.says(card, "Rejected")

    async def says(self, card: JsonObject, words: str) -> JsonObject:
        """Wait until a card contains this text."""
        return await self._message(
            lambda message: message["ts"] == card["ts"] and words in _text_of(message)
        )

    async def told(self, person: str, words: str) -> None:
        """Wait for this private message to a person."""
        await self.demo.sandbox.person(person).message_with(
            CHANNEL, lambda one: one["ephemeral"] and words in str(one["text"])
        )

    async def item(self, card: JsonObject) -> Item:
        """Return the record of the one call on a card."""
        loaded = await self.demo.stack.keyturn.reviews.read(_approval_of(card))
        assert loaded is not None
        return loaded.approval.items[0]

    async def cards(self) -> int:
        """Count the cards there are."""
        messages = await self.demo.sandbox.person(ANA).messages(CHANNEL)
        return sum(bool(_approval_of(message)) for message in messages)

    async def later(self, minutes: int) -> None:
        """Move the clock: make everything that counts in a window older."""
        conn = self.demo.stack.keyturn.store.conn
        for name in map(text, listed(await conn.command("KEYS", "*:w:*"))):
            if name.endswith(":sum"):
                continue
            for use in listed(await conn.command("ZRANGE", name, 0, -1)):
                await conn.command("ZINCRBY", name, -minutes * 60_000, text(use))

    async def _message(self, condition: Callable[[JsonObject], bool]) -> JsonObject:
        person = self.demo.sandbox.person(ANA)
        return await person.message_with(CHANNEL, condition, PATIENCE_S)


@asynccontextmanager
async def open_weekend(folder: Path, hour: int) -> AsyncGenerator[Weekend]:
    """Start everything where it is this hour now, with the policy as it is shipped.

    Slack's rate limits are off on both sides: a weekend passes in seconds.
    """
    text_there = POLICY.read_text(encoding="utf-8").replace(HOME, _where_it_is(hour))
    (folder / "policy.yml").write_text(text_there, encoding="utf-8")
    config = folder / "keyturn.yml"
    agents = f"agents: {{support: {{graph: '{GRAPH}:graph'}}}}"
    config.write_text(f"{agents}\npolicy: policy.yml\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        lift_limits(patch)
        async with open_demo_stack(
            config, folder / "data", mode=SlackMode.HTTP
        ) as demo:
            _populate(demo.sandbox.workspace)
            yield Weekend(demo)


def _where_it_is(hour: int) -> str:
    """Return the time zone in which it is this hour now, at any minute."""
    now = datetime.now(UTC)  # noqa: TID251 - about what the store's clock says
    ahead = (hour - now.hour + 12) % 24 - 12
    return f"Etc/GMT{-ahead:+d}"


def _populate(workspace: Workspace) -> None:
    workspace.put_user(User(LEAD, "lea", "Lea Lead", TEAM))
    members = frozenset({*workspace.users})
    workspace.put_channel(Channel(CHANNEL, "weekend-support", members))


def _approval_of(message: JsonObject) -> str:
    metadata = as_object(message.get("metadata"))
    is_card = metadata.get("event_type") == CARD_EVENT
    return str(as_object(metadata["event_payload"])["approval"]) if is_card else ""


def _text_of(message: JsonObject) -> str:
    return json.dumps(as_objects(message["blocks"]), ensure_ascii=False)
