"""Review an agent's calls in a test: run the agent, find its card, decide."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyturn.bot.app import SlackBot
from keyturn.bot.config import BotConfig
from keyturn.bot.ids import Action, Input, chosen
from keyturn.cli.demo_stack import seed
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.policy_file import policy_of
from keyturn.sandbox.client import Person
from keyturn.sandbox.elements import placed_elements
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects
from keyturn.sandbox.server import Sandbox

WAIT_S = 30.0


@asynccontextmanager
async def open_review(
    sandbox: Sandbox, policy: Policy | Path, data_dir: Path
) -> AsyncGenerator[Review]:
    """Start a gateway and a bot with a sandbox as Slack.

    The sandbox gets the people and channels of the policy.

    Raises:
        KeyturnError: when the policy is unreadable or the embedded store does not
            start.
    """
    seed(sandbox.workspace, policy_of(None, policy)())
    config = BotConfig(
        bot_token=sandbox.bot_token,
        app_token=sandbox.app_token,
        api_url=sandbox.api_url,
        seal_keys=(b"the key of one local review",),
    )
    async with (
        Keyturn(policy=policy, data_dir=data_dir) as keyturn,
        SlackBot(config, keyturn.reviews),
    ):
        review = Review(keyturn, sandbox)
        yield review
        await review.stop()


class Review:
    """A gateway with a local Slack, in one test.

    Attributes:
        keyturn: the gateway, for operations that `run` does not offer.
        sandbox: the local Slack.
    """

    def __init__(self, keyturn: Keyturn, sandbox: Sandbox) -> None:
        self.keyturn = keyturn
        self.sandbox = sandbox
        self._runs: list[asyncio.Task[dict[str, Any]]] = []
        self._seen: set[str] = set()

    def run(
        self,
        graph: object,
        text: str,
        *,
        thread_id: str = "test",
        agent: str = "agent",
        context: object = None,
    ) -> asyncio.Task[dict[str, Any]]:
        """Start an agent with one message of a user; await the task for its state.

        Args:
            graph: a graph as `Keyturn.run` accepts it.
            text: the user's message.
            thread_id: names the conversation.
            agent: the name in ``ApprovalMiddleware(name)``.
            context: for a graph with a ``context_schema``.
        """
        given = {"messages": [("user", text)]}
        running = self.keyturn.run(
            graph, given, thread_id=thread_id, agent=agent, context=context
        )
        self._runs.append(asyncio.create_task(running))
        return self._runs[-1]

    async def card(self, *, to: str = "U0ANA", timeout_s: float = WAIT_S) -> Card:
        """Wait for the next card that this person can decide.

        Args:
            to: Slack id of the person.
            timeout_s: how long to wait.

        Raises:
            TimeoutError: when no card was posted in time.
            Exception: the agent's error, when its run failed before a card was posted.
        """
        person = self.sandbox.person(to)
        waiting = asyncio.create_task(person.wait_for(self._new_cards, timeout_s))
        # A failed agent posts no card; its error is more useful than a timeout.
        while not waiting.done():
            running = [one for one in self._runs if not one.done()]
            await asyncio.wait([waiting, *running], return_when=asyncio.FIRST_COMPLETED)
            for one in self._runs:
                if one.done() and not one.cancelled() and (error := one.exception()):
                    waiting.cancel()
                    raise error
        channel, message = (await waiting)[0]
        self._seen.add(str(message["ts"]))
        return Card(person, channel, message)

    async def stop(self) -> None:
        """Cancel the runs that have not ended."""
        for one in self._runs:
            one.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)

    def _new_cards(self, state: JsonObject) -> list[tuple[str, JsonObject]]:
        return [
            (str(channel["id"]), message)
            for channel in as_objects(state["channels"])
            for message in as_objects(channel["messages"])
            if message["ts"] not in self._seen
            and _offers(message, Action.APPROVE, Action.APPROVE_ALL)
        ]


@dataclass(frozen=True)
class Card:
    """A card in Slack, as one person sees it.

    Attributes:
        person: the reviewer.
        channel: id of the channel.
        message: Slack's message, with ``ts`` and ``blocks``.
    """

    person: Person
    channel: str
    message: JsonObject

    @property
    def text(self) -> str:
        """Return the whole card as text, to search in it."""
        return json.dumps(self.message["blocks"], ensure_ascii=False)

    async def approve(self) -> None:
        """Press *Approve*, or *Approve all* on a card with several calls."""
        is_one = _offers(self.message, Action.APPROVE)
        await self._press(Action.APPROVE if is_one else Action.APPROVE_ALL)

    async def reject(self, reason: str = "") -> None:
        """Press *Reject* and submit the form."""
        await self._press(Action.REJECT)
        await self._submit({Input.REASON: reason} if reason else {})

    async def respond(self, message: str) -> None:
        """Press *Respond* and submit an answer in place of the tool's result."""
        await self._press(Action.RESPOND)
        await self._submit({Input.MESSAGE: message})

    async def edit(self, reason: str = "", **arguments: object) -> None:
        """Press *Edit*, change arguments in the form, and submit it."""
        await self._press(Action.EDIT)
        view = await self.person.wait_for_view(timeout_s=WAIT_S)
        blocks = {
            str(as_object(block.get("label")).get("text", "")): str(block["block_id"])
            for block in as_objects(view["blocks"])
            if block["type"] == "input"
        }
        missing = [name for name in arguments if name not in blocks]
        if missing:
            known = ", ".join(blocks)
            raise AssertionError(f"The form has no {missing!r}; it has: {known}.")
        values = {blocks[name]: value for name, value in arguments.items()}
        await self._submit(values | ({Input.REASON: reason} if reason else {}))

    async def _press(self, action: Action) -> None:
        ts = str(self.message["ts"])
        for placed in placed_elements(as_objects(self.message["blocks"])):
            element, block = placed.element, placed.block_id
            if element.get("action_id") == action:
                await self.person.click(self.channel, ts, action, block)
                return
            for option in as_objects(element.get("options")):
                value = str(option["value"])
                if chosen(value)[0] == action:
                    await self.person.click(
                        self.channel, ts, Action.MORE, block, chosen=value
                    )
                    return
        raise AssertionError(f"The card offers no {action.value!r}: {self.text}")

    async def _submit(self, values: dict[str, object]) -> None:
        await self.person.wait_for_view(timeout_s=WAIT_S)
        errors = await self.person.submit(values)
        if errors:
            raise AssertionError(f"The form was refused: {errors!r}.")


def _offers(message: JsonObject, *actions: Action) -> bool:
    blocks = as_objects(message.get("blocks"))
    return any(
        one.element.get("action_id") in actions for one in placed_elements(blocks)
    )
