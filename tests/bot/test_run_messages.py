"""A run that failed has one message an outage, with a button when it has stopped."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from keyturn.bot.ids import Action, seal_name
from keyturn.bot.limits import POST, UPDATE
from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.protocol.records import Person, RunRef
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.runs.jobs import Job, JobKind, RunState
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import DAN, TEAM, Stack, blocks_of, has_button
from tests.bot.strategies import CANARY
from tests.bot.tampering import click_with
from tests.streams import announced

CHANNEL = "C0GENERAL"
AT_ONCE = RetrySettings(notify_after=timedelta())
RESUME = Job(kind=JobKind.RESUME, tenant="default", agent="support", thread="t1")


class Run:
    """One thread of an agent that Dan asked in #general."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        stack.store.retries = AT_ONCE
        self.retries = Retries(stack.store)
        self.id = stack.keys.stalled_run("support", "t1")
        self.at = RunRef(agent="support", thread="t1")
        self.ts = ""

    async def asked(self, *others: Person) -> None:
        """Send a request as Dan, after other people's."""
        dan = self.stack.actor("U0DAN")
        self.ts = await dan.say("#general", "a refund, please")
        facts = ThreadFacts(
            requester=DAN,
            principals=others,
            origin=Origin(channel=CHANNEL, thread_ts=self.ts),
        )
        threads = self.stack.store.threads
        await threads.change(
            self.stack.keys, "support", "t1", lambda _: facts, why="aside"
        )

    async def fails(self, error: Exception) -> None:
        """Make an attempt fail."""
        await self.retries.failed(self.at, error, left=RESUME)

    async def goes_on(self) -> None:
        """Make an attempt succeed."""
        await self.retries.record_resumed(self.at, None)

    async def message(self, *words: str) -> JsonObject:
        """Wait until the run's message has this text."""

        def is_it(message: JsonObject) -> bool:
            is_shown = all(word in blocks_of(message) for word in words)
            return self._is_own(message) and is_shown

        return await self.stack.actor("U0ANA").message_with("#general", is_it)

    async def messages(self) -> list[JsonObject]:
        """Return all messages of the bot in the run's thread."""
        found = await self.stack.actor("U0ANA").messages("#general")
        return [one for one in found if self._is_own(one)]

    def _is_own(self, message: JsonObject) -> bool:
        is_reply = message.get("thread_ts") == self.ts and message["ts"] != self.ts
        return is_reply and not message["ephemeral"]

    async def click(self, user: str, message: JsonObject) -> None:
        """Press Try again."""
        actor = self.stack.actor(user)
        await actor.click("#general", str(message["ts"]), Action.TRY_AGAIN)
        await self.stack.bot_is_quiet()

    async def click_with(self, message: JsonObject, value: str) -> None:
        """Have Ana press a button of the message that has this value."""
        await click_with(self.stack, message, Action.TRY_AGAIN, value, channel=CHANNEL)
        await self.stack.bot_is_quiet()

    async def tries(self) -> list[str]:
        """Return the person who requested another try."""
        found = await announced(self.stack.store.conn, self.stack.keys)
        tried = [one for one in found if one.name is EventName.RUN_RETRIED]
        assert all(one.data["gesture"] == Gesture.BUTTON for one in tried)
        return [one.actor for one in tried]

    async def jobs(self) -> int:
        """Return how many jobs there are."""
        return await self.stack.store.queue(self.stack.keys).depth()


@pytest.fixture
async def run(stack: Stack) -> AsyncIterator[Run]:
    """Give a run whose bot is running."""
    run = Run(stack)
    async with stack.running():
        yield run


def button_value(message: JsonObject) -> str:
    """Return the value of the message's button."""
    [row] = [one for one in as_objects(message["blocks"]) if one["type"] == "actions"]
    [button] = as_objects(row["elements"])
    return str(button["value"])


async def test_an_outage_is_one_message_that_is_edited_to_its_end(run: Run) -> None:
    await run.asked()
    await run.fails(ConnectionError(CANARY))
    waiting = await run.message("The run waits", "retried by itself until")
    await run.fails(TimeoutError(CANARY))
    await run.message("TimeoutError")
    await run.goes_on()
    ended = await run.message("The run continued")
    await run.stack.nothing_is_left()

    assert ended["ts"] == waiting["ts"]
    assert len(await run.messages()) == 1
    assert CANARY not in json.dumps(run.stack.calls(POST) + run.stack.calls(UPDATE))


async def test_the_requester_tries_again_and_the_message_says_so(run: Run) -> None:
    await run.asked()
    await run.fails(KeyError())
    parked = await run.message("The run has stopped")
    await run.click("U0DAN", parked)

    tried = await run.message("Tried again")
    assert await run.tries() == [f"{TEAM}/U0DAN"]
    assert await run.jobs() == 1
    assert not has_button(tried, Action.TRY_AGAIN)
    await run.fails(KeyError())
    again = await run.message("The run has stopped")
    await run.stack.nothing_is_left()

    assert tried["ts"] == parked["ts"] == again["ts"]


async def test_a_reviewer_tries_again_and_nobody_else_does(run: Run) -> None:
    await run.asked()
    await run.fails(KeyError())
    parked = await run.message("The run has stopped")

    await run.click("U0EVE", parked)
    assert await run.tries() == []
    assert await run.jobs() == 0
    await run.click("U0ANA", parked)

    assert await run.tries() == [f"{TEAM}/U0ANA"]


async def test_one_of_many_clicks_tries_again(run: Run) -> None:
    await run.asked()
    await run.fails(KeyError())
    parked = await run.message("The run has stopped")
    dan = run.stack.actor("U0DAN")
    value = button_value(parked)
    await dan.click("#general", str(parked["ts"]), Action.TRY_AGAIN)
    await run.message("Tried again")
    await run.stack.nothing_is_left()

    await run.click_with(parked, value)
    await run.stack.told("U0ANA", "being tried again already", "#general")
    await run.goes_on()
    await run.message("The run continued")
    await run.stack.nothing_is_left()
    await run.click_with(parked, value)
    await run.stack.told("U0ANA", "not stopped any more", "#general")

    assert await run.jobs() == 1
    assert len(await run.tries()) == 1


async def test_a_seal_of_another_outage_or_team_tries_nothing(run: Run) -> None:
    key = run.stack.config.seal_key
    await run.asked()
    await run.fails(KeyError())
    parked = await run.message("The run has stopped")
    kept = await run.stack.store.stalled.find(run.stack.keys, run.id)
    assert kept
    foreign = seal_name(kept.outage, key=key, team="T0OTHER", purpose=Action.TRY_AGAIN)
    altered = button_value(parked).replace(kept.outage, f"{kept.outage}0")
    for value in (foreign, altered, "no seal"):
        await run.click_with(parked, value)
        await run.stack.told("U0ANA", "does not belong", "#general")

    found = await run.stack.store.stalled.find(run.stack.keys, run.id)

    assert found
    assert found.state is RunState.PARKED
    assert await run.tries() == []
