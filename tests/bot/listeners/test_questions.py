"""People answer an agent's questions: in a form or in the thread, once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, cast

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.record import DecisionRecord
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.strict_json import JsonObject as Args
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.reviewers.cards import CardStore
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import CHANNEL, Stack, says
from tests.conftest import eventually
from tests.panics import failing
from tests.sample_questions import EXTRAS, REGION

NAME = {"question": "What is its <!channel> name?"}


async def asked(
    stack: Stack, *questions: Mapping[str, object], requester: Person | None = None
) -> Verdict:
    """Ask a question as the agent, for Dan or for no one; return the verdict."""
    args = cast("Args", {"questions": [dict(one) for one in questions]})
    more: dict[str, Any] = {} if requester is None else {"requester": requester}
    [verdict] = await stack.submit(("ask_user", args), **more)
    return verdict


async def opened(stack: Stack, verdict: Verdict, user: str) -> Actor:
    """Open the form of a card's questions."""
    person = await stack.click(verdict, Action.ANSWER, user)
    await person.wait_for_view()
    return person


async def decision(stack: Stack, verdict: Verdict) -> DecisionRecord:
    found = (await stack.item(verdict)).decision
    assert found
    return found


async def replied(stack: Stack, verdict: Verdict, user: str, text: str) -> str:
    """Write under a card; return the private reply to it."""
    card, person = await stack.card(verdict), stack.actor(user)
    before = len(await person.ephemerals(CHANNEL))
    await person.say(CHANNEL, f"@keyturn {text}", str(card["ts"]))

    def all_of(state: JsonObject) -> list[JsonObject]:
        return [
            message
            for channel in as_objects(state["channels"])
            for message in as_objects(channel["messages"])
            if message["ephemeral"]
        ]

    found = await person.wait_for(
        lambda state: all_of(state) if len(all_of(state)) > before else []
    )
    return str(found[-1]["text"])


async def test_one_form_answers_all_questions_in_one_step(each_live: Stack) -> None:
    live = each_live
    verdict = await asked(live, REGION, EXTRAS, NAME)
    dan = await opened(live, verdict, "U0DAN")

    values = {
        "question.0": "other",
        "question.0.other": "Mars",
        "question.1": ["1", "0"],
        "question.1.other": "backups",
        "question.2": "Ada & <Co>",
    }
    errors = await dan.submit({**values, "question.2": "  "})
    assert "Please answer" in errors["question.2"]
    assert await dan.submit(values) == {}

    said = await decision(live, verdict)
    answers = ("Mars", "logs, alerts, backups", "Ada & <Co>")
    assert (said.answers, said.by.user) == (answers, "U0DAN")
    card = await live.card(verdict, says("Answered"))
    assert "<@U0DAN>" in str(card["blocks"])
    assert "Mars" in str(card["blocks"])
    assert not [b for b in as_objects(card["blocks"]) if b["type"] == "actions"]
    assert (await live.approval(verdict)).rev == 2


async def test_a_reply_cannot_answer_several_questions(live: Stack) -> None:
    verdict = await asked(live, NAME, REGION)

    assert "several questions" in await replied(live, verdict, "U0DAN", "Ada")

    assert (await live.item(verdict)).is_pending


@pytest.mark.parametrize("user", ["U0EVE", "U0GUEST"])
async def test_others_are_told_why_they_cannot_answer(live: Stack, user: str) -> None:
    verdict = await asked(live, NAME)
    card, person = await live.card(verdict), live.actor(user)
    for action in (Action.ANSWER, Action.SKIP):
        await person.click(CHANNEL, str(card["ts"]), action)
        await live.bot_is_quiet()

    told = [str(m["text"]) for m in await person.ephemerals(CHANNEL)]
    assert len(told) == 2
    assert all("answer" in one or "decide" in one for one in told), told
    assert (await live.item(verdict)).is_pending


async def test_who_answers_second_is_told_that_it_is_answered(live: Stack) -> None:
    verdict = await asked(live, NAME)
    dan = await opened(live, verdict, "U0DAN")
    ana = await opened(live, verdict, "U0ANA")
    assert await ana.submit({"question.0": "Ada"}) == {}

    await dan.submit({"question.0": "Bob"})

    view = await dan.wait_for_view()
    assert "Already answered by <@U0ANA>" in str(view["blocks"])
    assert "ran" not in str(view["blocks"])
    told = await replied(live, verdict, "U0DAN", "Bob")
    assert "Already answered by <@U0ANA>" in told
    assert (await decision(live, verdict)).answers == ("Ada",)


async def answered(stack: Stack, verdict: Verdict) -> DecisionRecord:
    """Wait for the answer of a question."""
    found: list[DecisionRecord] = []

    async def is_there() -> bool:
        decision = (await stack.item(verdict)).decision
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
    live: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = StoreUnavailable("The store does not answer.")
    tries = failing(monkeypatch, ReviewService, "decide", gone, times=1)
    verdict = await asked(live, NAME)

    first = await replied(live, verdict, "U0DAN", "Ada")

    assert "Slack repeats your message" in first
    assert (await answered(live, verdict)).answers == ("Ada",)
    await live.told("U0DAN", "Recorded, thank you.")
    assert len(tries) == 2


async def test_a_reply_delivered_twice_answers_a_single_question_once(
    each_live: Stack,
) -> None:
    live = each_live
    verdict = await asked(live, NAME)
    await live.card(verdict)
    live.sandbox.control.delivery_fault("duplicate")

    told = await replied(live, verdict, "U0DAN", "Ada & Co")

    assert told == "Recorded, thank you."
    await live.bot_is_quiet()
    assert len(await live.actor("U0DAN").ephemerals(CHANNEL)) == 1
    assert (await answered(live, verdict)).answers == ("Ada & Co",)
    assert (await live.approval(verdict)).rev == 2
    # It resumes the run, and starts none.
    assert await live.store.queue(live.keys).depth() == 1


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
