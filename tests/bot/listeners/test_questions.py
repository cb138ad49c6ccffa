"""People answer an agent's questions: in a form, in the thread, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.record import DecisionRecord, approval_of
from keyturn.gateway.protocol.records import ItemState, Person
from keyturn.gateway.protocol.strict_json import JsonObject as Args
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import CHANNEL, Stack, says
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
    card, person = await stack.card(verdict), stack.actor(user)
    await person.click(CHANNEL, str(card["ts"]), Action.ANSWER)
    await person.wait_for_view()
    return person


async def decision(stack: Stack, verdict: Verdict) -> DecisionRecord:
    found = (await stack.approval(verdict)).items[0].decision
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


async def test_one_form_answers_all_questions_in_one_step(each_stack: Stack) -> None:
    stack = each_stack
    async with stack.running():
        verdict = await asked(stack, REGION, EXTRAS, NAME)
        dan = await opened(stack, verdict, "U0DAN")

        values = {
            "question.0": "other",
            "question.0.other": "Mars",
            "question.1": ["1", "0"],
            "question.1.other": "backups",
            "question.2": "Ada & <Co>",
        }
        assert await dan.submit(values) == {}

        said = await decision(stack, verdict)
        answers = ("Mars", "logs, alerts, backups", "Ada & <Co>")
        assert (said.answers, said.by.user) == (answers, "U0DAN")
        card = await stack.card(verdict, says("Answered"))
        assert "<@U0DAN>" in str(card["blocks"])
        assert "Mars" in str(card["blocks"])
        assert not [b for b in as_objects(card["blocks"]) if b["type"] == "actions"]
        assert (await stack.approval(verdict)).rev == 2
    assert stack.sandbox.problems == []


async def test_a_thread_reply_answers_a_single_question(each_stack: Stack) -> None:
    stack = each_stack
    async with stack.running():
        verdict = await asked(stack, NAME)

        told = await replied(stack, verdict, "U0DAN", "Ada & Co")

        assert told == "Recorded, thank you."
        said = await decision(stack, verdict)
        assert said.answers == ("Ada & Co",)
        assert await stack.store.queue(stack.keys).depth() == 1  # resumes, starts none
    assert stack.sandbox.problems == []


async def test_a_reply_cannot_answer_several_questions(stack: Stack) -> None:
    async with stack.running():
        verdict = await asked(stack, NAME, REGION)

        assert "several questions" in await replied(stack, verdict, "U0DAN", "Ada")

        assert (await stack.approval(verdict)).items[0].is_pending


@pytest.mark.parametrize("user", ["U0EVE", "U0GUEST"])
async def test_others_are_told_why_they_cannot_answer(stack: Stack, user: str) -> None:
    async with stack.running():
        verdict = await asked(stack, NAME)
        card, person = await stack.card(verdict), stack.actor(user)
        for action in (Action.ANSWER, Action.SKIP):
            await person.click(CHANNEL, str(card["ts"]), action)
            await stack.bot_is_quiet()

        told = [str(m["text"]) for m in await person.ephemerals(CHANNEL)]
        assert len(told) == 2
        assert all("answer" in one or "decide" in one for one in told), told
        assert (await stack.approval(verdict)).items[0].is_pending


async def test_who_answers_second_is_told_that_it_is_answered(stack: Stack) -> None:
    async with stack.running():
        verdict = await asked(stack, NAME)
        dan = await opened(stack, verdict, "U0DAN")
        ana = await opened(stack, verdict, "U0ANA")
        assert await ana.submit({"question.0": "Ada"}) == {}

        await dan.submit({"question.0": "Bob"})

        view = await dan.wait_for_view()
        assert "Already answered by <@U0ANA>" in str(view["blocks"])
        assert "ran" not in str(view["blocks"])
        told = await replied(stack, verdict, "U0DAN", "Bob")
        assert "Already answered by <@U0ANA>" in told
        assert (await decision(stack, verdict)).answers == ("Ada",)


async def test_after_its_time_a_question_takes_no_answer(stack: Stack) -> None:
    async with stack.running():
        verdict = await asked(stack, EXTRAS)
        dan = await opened(stack, verdict, "U0DAN")
        approval_id = approval_of(verdict.item_id)[0]
        await stack.store.conn.transaction(
            ["HSET", stack.keys.head(approval_id), "expires", 1],
            ["ZADD", stack.keys.expiry, 1, stack.keys.listed(approval_id)],
        )

        await dan.submit({"question.0": ["0"]})

        view = await dan.wait_for_view()
        assert "Expired" in str(view["blocks"])
        item = (await stack.approval(verdict)).items[0]
        assert item.state is ItemState.EXPIRED
        await stack.card(verdict, says("*Expired*"))
        told = await replied(stack, verdict, "U0DAN", "logs")
        assert "Expired" in told


@pytest.mark.parametrize(
    ("values", "block", "why"),
    [
        ({"question.0": "other"}, "question.0.other", "Write your answer"),
        (
            {"question.0": "0", "question.0.other": "Mars"},
            "question.0.other",
            "Choose Other",
        ),
        (
            {"question.0": "0", "question.1.other": "a, b"},
            "question.1.other",
            "commas",
        ),
        ({"question.0": "0", "question.2": "  "}, "question.2", "Please answer"),
    ],
)
async def test_an_answer_that_does_not_fit_is_explained_under_its_input(
    stack: Stack, values: dict[str, str], block: str, why: str
) -> None:
    async with stack.running():
        verdict = await asked(stack, REGION, EXTRAS, NAME)
        dan = await opened(stack, verdict, "U0DAN")

        errors = await dan.submit({"question.2": "Ada", **values})

        assert why in errors[block]
        assert (await stack.approval(verdict)).items[0].is_pending
