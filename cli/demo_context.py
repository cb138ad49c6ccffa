"""Context of a demo script: act as people of the sandbox over HTTP, await results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from keyturn.bot.cards.channel_messages import agent_answer
from keyturn.bot.cards.reminders import Call, escalation, reminder
from keyturn.bot.ids import CARD_EVENT, Action, View, chosen
from keyturn.cli.demo_stack import (
    CHANNEL,
    FIRST_REQUEST,
    QUEUED,
    REQUESTER,
    REVIEWER,
    DemoStack,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.sandbox.client import Person
from keyturn.sandbox.elements import placed_elements
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects

STEP_TIMEOUT_S = 60.0
WAIT_S = 120.0
"""How long twenty runs of the agent may take on a busy machine."""

# The bot's builders: a script with copied texts would break at every changed comma.
_ANNOUNCEMENTS: dict[EventName, Callable[[Approval], Call]] = {
    EventName.APPROVAL_REMINDED: reminder,
    EventName.APPROVAL_ESCALATED: partial(escalation, channels={}),
}

Say = Callable[..., None]


class StoryFailed(KeyturnError):
    """A script ended differently than expected."""


@dataclass
class DemoContext:
    """Context of a script: the demo, its output and its files.

    Attributes:
        demo: the sandbox and the stack.
        say: prints one step; called with ``event`` and its fields.
        ledger: file with one JSON line for every effect of a tool.
        outage: file; while it exists, the agent's model is unreachable.
    """

    demo: DemoStack
    say: Say
    ledger: Path
    outage: Path
    asked_at: str = field(default="")

    @property
    def dan(self) -> Person:
        """Return the requester."""
        return self.demo.sandbox.person(REQUESTER)

    @property
    def ana(self) -> Person:
        """Return the reviewer."""
        return self.demo.sandbox.person(REVIEWER)

    async def ask(self, text: str = FIRST_REQUEST) -> tuple[str, Approval]:
        """Send the agent a request and wait for the card; return ts and approval."""
        self.asked_at = await self.dan.say(CHANNEL, text)
        self.say("agent.asked", by=REQUESTER, text=text)
        return await self.card_after(self.asked_at)

    async def ask_all(self) -> None:
        """Send the agent a request in each of 20 threads."""
        for request in QUEUED:
            await self.dan.say(CHANNEL, request)
        self.say("agent.asked", by=REQUESTER, threads=len(QUEUED))

    async def home_shows(self, words: str) -> None:
        """Wait until the reviewer's Home tab contains a text."""
        await self.ana.wait_for(
            lambda state: words in json.dumps(state["home"]) or None, WAIT_S
        )

    async def card_after(self, ts: str) -> tuple[str, Approval]:
        """Wait for a card after a message; return its ts and the approval."""

        def is_new(message: JsonObject) -> bool:
            # Earlier runs left messages here; a ts has a fixed width and compares as
            # text.
            return bool(_approval_id(message)) and str(message["ts"]) > ts

        card = await self.ana.message_with(CHANNEL, is_new, STEP_TIMEOUT_S)
        approval = await self.approval(_approval_id(card))
        ids = [item.id for item in approval.items]
        tools = [item.tool for item in approval.items]
        self.say("card.posted", approval=approval.id, items=ids, tools=tools)
        return str(card["ts"]), approval

    async def approval(self, approval_id: str) -> Approval:
        """Return the current state of an approval."""
        loaded = await self.demo.stack.keyturn.reviews.read(approval_id)
        if loaded is None:
            raise StoryFailed(f"There is no approval {approval_id!r}.")
        return loaded.approval

    async def api_key(self, agent: str) -> str:
        """Make an API key for an agent of the demo."""
        store, tenant = self.demo.stack.keyturn.store, self.demo.settings.tenant
        keys, lives = ApiKeyStore(store, tenant=tenant), timedelta(hours=1)
        return (await keys.create("demo", lives, name="demo", agents=[agent])).text

    def _say_of(self, event: str, approval: Approval, n: int, **more: object) -> None:
        """Print a step about one item."""
        self.say(event, approval=approval.id, item=approval.items[n].id, **more)

    async def click(
        self, ts: str, action: Action, approval: Approval, n: int, by: str = REVIEWER
    ) -> None:
        """Click one item's button on a card, or choose the action in its menu."""
        block, value = await self._place_of(ts, action, approval, n)
        person, used = self.demo.sandbox.person(by), Action.MORE if value else action
        await person.click(CHANNEL, ts, used, block, chosen=value or None)
        self._say_of("reviewer.clicked", approval, n, by=by, action=action.value)

    async def decide(
        self,
        ts: str,
        approval: Approval,
        action: Action,
        state: ItemState,
        values: Mapping[Any, object] | None = None,
        n: int = 0,
    ) -> tuple[Approval, str]:
        """Decide one item as the reviewer, wait for its state and for the agent.

        ``values`` are those of the form that the action opens. Returns the approval,
        and the agent's answer once no item is pending.
        """
        await self.click(ts, action, approval, n)
        if values is not None:
            await self.fill(values, approval, n)
        after = await self.reached(approval, {n: state})
        is_over = not any(item.is_pending for item in after.items)
        return after, await self.final_message() if is_over else ""

    async def message(
        self, words: str, timeout_s: float = STEP_TIMEOUT_S
    ) -> JsonObject:
        """Wait until a message in the channel contains a text; return it."""
        return await self.ana.message_with(
            CHANNEL, lambda message: words in json.dumps(message["blocks"]), timeout_s
        )

    async def voted(
        self, ts: str, approval: Approval, n: int, *, have: int, need: int
    ) -> None:
        """Wait until the card shows the number of approvals of an item."""
        await self.shows(ts, f"{have} of {need} approvals")
        self._say_of("item.voted", approval, n, have=have, need=need)

    async def called(self, ts: str, approval: Approval, event: EventName) -> None:
        """Wait for the reminder or escalation in the thread of a card."""
        line, _, _ = _ANNOUNCEMENTS[event](approval).message.text.partition(".")

        def is_call(message: JsonObject) -> bool:
            # Only the first sentence: the rest depends on the call's progress.
            sentence, _, _ = str(message["text"]).partition(".")
            return message.get("thread_ts") == ts and sentence == line

        await self.ana.message_with(CHANNEL, is_call, STEP_TIMEOUT_S)
        self.say(event.value, approval=approval.id)

    async def card_shows(
        self, ts: str, event: EventName, approval: Approval, words: str
    ) -> None:
        """Wait until a card contains a text, and print the event."""
        await self.shows(ts, words)
        self.say(event.value, approval=approval.id, text=words)

    async def shows(
        self, ts: str, words: str, timeout_s: float = STEP_TIMEOUT_S
    ) -> None:
        """Wait until a message in the channel contains a text."""

        def is_shown(message: JsonObject) -> bool:
            return message["ts"] == ts and words in json.dumps(message)

        await self.ana.message_with(CHANNEL, is_shown, timeout_s)

    async def view(self, purpose: View, words: str = "") -> None:
        """Wait until the reviewer's modal has this purpose and text."""
        await self.ana.wait_for_view(
            lambda view: view["callback_id"] == purpose and words in json.dumps(view),
            WAIT_S,
        )

    async def refunded(self, count: int) -> None:
        """Wait until this many refunds ran, each of another order."""

        # By effects, not by cards: a card is updated after its calls ran.
        async def is_done() -> bool:
            return len(self.effects()) == count

        await self.until(is_done, "every refund", WAIT_S)
        # 20 effects could include one refund twice and another one never.
        orders = {str(effect["args"]) for effect in self.effects()}
        expect(len(orders) == count, "A refund ran twice.")

    def updates(self, ts: str) -> int:
        """Return how often a message was updated."""
        return sum(
            one.method == "chat.update" and one.arguments["ts"] == ts
            for one in self.demo.sandbox.calls
        )

    async def submit(
        self, values: Mapping[str, object], approval: Approval, n: int
    ) -> dict[str, str]:
        """Submit the modal on top; keys are labels or block ids of its inputs."""
        view = await self.ana.wait_for_view(timeout_s=STEP_TIMEOUT_S)
        blocks = {
            str(as_object(block.get("label")).get("text", "")): str(block["block_id"])
            for block in as_objects(view["blocks"])
            if block["type"] == "input"
        }
        named = {blocks.get(key, key): value for key, value in values.items()}
        errors = await self.ana.submit(named)
        found = list(errors.values())
        self._say_of("reviewer.submitted", approval, n, by=REVIEWER, errors=found)
        return errors

    async def fill(
        self, values: Mapping[Any, object], approval: Approval, n: int
    ) -> None:
        """Submit the modal on top, which has to accept it; see `submit`."""
        refused = await self.submit(values, approval, n)
        expect(not refused, f"The form was refused: {refused}.")

    async def confirm(self, values: Mapping[str, object] | None = None) -> None:
        """Submit the reviewer's modal about several calls, which has to accept it."""
        refused = await self.ana.submit(values)
        expect(not refused, f"The form was refused: {refused}.")

    async def reached(
        self, approval: Approval, states: Mapping[int, ItemState]
    ) -> Approval:
        """Wait until items have reached these states; return the approval."""

        async def there() -> bool:
            now = await self.approval(approval.id)
            return all(now.items[n].state is state for n, state in states.items())

        try:
            await self.until(there, f"states {[s.value for s in states.values()]}")
        except StoryFailed as error:
            now = await self.approval(approval.id)
            stand = ", ".join(f"{one.id} is {one.state.value}" for one in now.items)
            raise StoryFailed(f"{error} Now {stand}.") from error
        for n, state in states.items():
            self._say_of(f"item.{state}", approval, n)
        return await self.approval(approval.id)

    async def final_message(self) -> str:
        """Wait for the agent's last message in the request's thread."""

        def spoken(message: JsonObject) -> bool:
            is_reply = message.get("thread_ts") == self.asked_at
            return is_reply and message["text"] == agent_answer("").text

        reply = await self.ana.message_with(CHANNEL, spoken, STEP_TIMEOUT_S)
        words = " ".join(
            str(as_object(block.get("text")).get("text", ""))
            for block in as_objects(reply["blocks"])
        )
        self.say("agent.said", text=words)
        return words

    async def run_shown(self, event: EventName, words: str) -> str:
        """Wait until the outage message begins with these words; return its ts."""

        def is_it(message: JsonObject) -> bool:
            is_reply = message.get("thread_ts") == self.asked_at
            return is_reply and str(message["text"]).startswith(words)

        shown = await self.ana.message_with(CHANNEL, is_it, STEP_TIMEOUT_S)
        self.say(event.value, shown=shown["text"])
        return str(shown["ts"])

    def check(self, words: str, *said: str, refunds: list[object]) -> None:
        """Check the refunds that ran, and the agent's last message."""
        ran = [
            as_object(effect["args"])["amount"]
            for effect in self.effects()
            if effect["tool"] == "process_refund"
        ]
        expect(ran == refunds, f"Refunds of {refunds} were expected; {ran} ran.")
        for one in said:
            expect(one in words, f"The agent does not say {one!r}.")

    def effects(self) -> list[JsonObject]:
        """Return the effects of all tools, in order."""
        if not self.ledger.exists():
            return []
        lines = self.ledger.read_text(encoding="utf-8").splitlines()
        return [as_object(json.loads(line)) for line in lines]

    async def _place_of(
        self, ts: str, action: Action, approval: Approval, n: int
    ) -> tuple[str, str]:
        """Wait until a card offers an action for each pending item; return one."""
        now = await self.approval(approval.id)
        pending = [item.index for item in now.items if item.is_pending]

        def found(state: JsonObject) -> list[tuple[str, str]]:
            shown = [
                (placed.block_id, value)
                for channel in as_objects(state["channels"])
                for message in as_objects(channel["messages"])
                if message["ts"] == ts
                for placed in placed_elements(as_objects(message["blocks"]))
                for value in _offered(placed.element, action)
            ]
            # Until the card shows the state that was read: on an older card, the n-th
            # button would belong to another call.
            return shown if len(shown) == len(pending) else []

        return (await self.ana.wait_for(found, STEP_TIMEOUT_S))[pending.index(n)]

    async def until(
        self,
        condition: Callable[[], Awaitable[bool]],
        what: str,
        timeout_s: float = STEP_TIMEOUT_S,
    ) -> None:
        """Wait until a condition is true; fail the script after a while."""
        # Polled: the state is in the gateway, and the sandbox, which supports waiting,
        # gets no event.
        for _ in range(int(timeout_s * 20)):
            if await condition():
                return
            await asyncio.sleep(0.05)
        raise StoryFailed(f"The script waited {timeout_s:.0f} s in vain for {what}.")


def expect(holds: object, sentence: str) -> None:
    """Fail the script unless a condition is true.

    Raises:
        StoryFailed: with the sentence.
    """
    if not holds:
        raise StoryFailed(sentence)


def _approval_id(message: JsonObject) -> str:
    metadata = as_object(message.get("metadata"))
    if metadata.get("event_type") != CARD_EVENT:
        return ""
    return str(as_object(metadata.get("event_payload")).get("approval", ""))


def _offered(element: JsonObject, action: Action) -> list[str]:
    """Return "" for a button with this action, or the values of its menu options."""
    values = [str(option["value"]) for option in as_objects(element.get("options"))]
    is_button = element.get("action_id") == action
    return [""] if is_button else [one for one in values if chosen(one)[0] == action]
