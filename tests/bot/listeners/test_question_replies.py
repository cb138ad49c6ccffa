"""A reply under a question is its answer: kept before Slack hears that we have it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from keyturn.gateway.approvals.record import DecisionRecord
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.reviewers.cards import CardStore
from tests.bot.bot_stack import CHANNEL, Stack
from tests.bot.listeners.test_questions import NAME, asked, replied
from tests.conftest import eventually
from tests.sample_questions import EXTRAS, REGION


async def answered(stack: Stack, verdict: Verdict) -> DecisionRecord:
    """Wait for the answer of a question."""
    found: list[DecisionRecord] = []

    async def is_there() -> bool:
        decision = (await stack.approval(verdict)).items[0].decision
        found.extend([decision] if decision else [])
        return bool(found)

    await eventually(is_there)
    return found[0]


async def test_an_answer_outlives_a_process_that_ends_after_its_acknowledgement(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.running() as bot:
        verdict = await asked(stack, NAME)
        card = await stack.card(verdict)

        def lost(work: Coroutine[object, object, None], *, name: str) -> None:
            del name
            work.close()

        # What a process does after the acknowledgement is lost when it is killed there.
        monkeypatch.setattr(cast("Any", bot)._tasks, "later", lost)
        await stack.actor("U0DAN").say(CHANNEL, "@keyturn Ada", str(card["ts"]))

        said = await answered(stack, verdict)
        assert said.answers == ("Ada",)


async def test_an_answer_that_the_store_did_not_take_is_delivered_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide, tries = ReviewService.decide, list[int]()

    async def once_unavailable(self: ReviewService, *args: Any, **kwargs: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise StoreUnavailable("The store does not answer.")
        return await decide(self, *args, **kwargs)

    monkeypatch.setattr(ReviewService, "decide", once_unavailable)
    async with stack.running():
        verdict = await asked(stack, NAME)

        first = await replied(stack, verdict, "U0DAN", "Ada")

        assert "Slack repeats your message" in first
        assert (await answered(stack, verdict)).answers == ("Ada",)
        await stack.told("U0DAN", "Recorded, thank you.")
        assert len(tries) == 2


async def test_a_reply_delivered_twice_counts_once(stack: Stack) -> None:
    async with stack.running():
        verdict = await asked(stack, NAME)
        await stack.card(verdict)
        stack.sandbox.control.delivery_fault("duplicate")

        assert "Recorded" in await replied(stack, verdict, "U0DAN", "Ada")

        await stack.bot_is_quiet()
        assert len(await stack.actor("U0DAN").ephemerals(CHANNEL)) == 1
        said = await answered(stack, verdict)
        assert said.answers == ("Ada",)
        assert (await stack.approval(verdict)).rev == 2


@pytest.mark.parametrize(
    ("question", "words", "answer"),
    [
        (REGION, "us", "US"),
        (REGION, "Mars, or so", "Mars, or so"),
        (EXTRAS, "Alerts", "alerts"),
        (EXTRAS, "alerts,LOGS", "logs, alerts"),
        (EXTRAS, "my own, logs", "logs, my own"),
        (NAME, "Ada, Bob", "Ada, Bob"),
    ],
)
async def test_a_reply_names_choices_in_any_case_and_order(
    stack: Stack, question: dict[str, Any], words: str, answer: str
) -> None:
    async with stack.running():
        verdict = await asked(stack, question)

        assert "Recorded" in await replied(stack, verdict, "U0DAN", words)

        said = await answered(stack, verdict)
        assert said.answers == (answer,)


async def test_a_reply_that_comes_before_its_card_is_registered_answers_the_card(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted, shown_at, was_looked_for = (
        CardStore.posted,
        CardStore.shown_at,
        asyncio.Event(),
    )

    async def late(self: CardStore, *args: Any, **kwargs: Any) -> Any:
        await was_looked_for.wait()
        return await posted(self, *args, **kwargs)

    async def looked(self: CardStore, *args: Any) -> str:
        found = await shown_at(self, *args)
        was_looked_for.set()
        return found

    monkeypatch.setattr(CardStore, "posted", late)
    monkeypatch.setattr(CardStore, "shown_at", looked)
    async with stack.running():
        verdict = await asked(stack, NAME)

        assert "Recorded" in await replied(stack, verdict, "U0DAN", "Ada")

        assert (await answered(stack, verdict)).answers == ("Ada",)
