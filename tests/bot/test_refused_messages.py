"""A message that Slack refuses is posted in plainer form, or again; none is lost."""

from __future__ import annotations

import pytest

from keyturn.bot.delivery import card_updater, queue_sender
from keyturn.bot.web import ABOUT_THE_BLOCKS, WORKSPACE_ERRORS
from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.sandbox.faults import Fault
from tests.approvals.builders import click_on
from tests.bot.bot_stack import CHANNEL, POLICY, REFUND, Stack, says
from tests.bot.test_notified import ana
from tests.bot.test_publisher import nothing_is_left, put

DIRECT = POLICY.replace("users: [U0DAN]}", "users: [U0DAN], notify: dm}")
POST = "chat.postMessage"
ASKED_IN = "C0GENERAL"


def refuse(stack: Stack, error: str, *, calls: int = 1) -> None:
    stack.sandbox.faults.plan(Fault.REFUSE, POST, error=error, calls=calls)


async def asked(stack: Stack) -> dict[str, str]:
    """Send a request as Dan; return the place of the agent's answers."""
    ts = await stack.actor("U0DAN").say("#general", "@keyturn refund")
    return {"channel": ASKED_IN, "thread_ts": ts}


@pytest.mark.parametrize("error", sorted(ABOUT_THE_BLOCKS))
async def test_a_refused_answer_is_reported(stack: Stack, error: str) -> None:
    async with stack.running():
        place = await asked(stack)
        refuse(stack, error)

        await put(stack, EventName.RUN_FINISHED, text="Done", **place)

        dan = stack.actor("U0DAN")
        told = await dan.message_with("#general", says("Slack refuses the rest"))
        assert told["thread_ts"] == place["thread_ts"]


async def test_a_note_that_slack_never_shows_holds_nothing_up(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        refuse(stack, "invalid_blocks", calls=2)

        click = click_on(await stack.approval(verdict))
        await stack.reviews.decide(click, Edit(args={**REFUND, "amount": 5}), ana())
        await nothing_is_left(stack)

        assert await stack.notes(card) == []
        await stack.execute(verdict, ok=False)
        await nothing_is_left(stack)
        assert await stack.notes(card)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once after a refusal to the whole workspace."""
    monkeypatch.setattr(queue_sender, "BROKEN_S", 0.02)
    monkeypatch.setattr(card_updater, "BROKEN_S", 0.02)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("error", sorted(WORKSPACE_ERRORS))
async def test_an_answer_waits_for_its_workspace(stack: Stack, error: str) -> None:
    async with stack.running():
        place = await asked(stack)
        refuse(stack, error, calls=2)

        await put(stack, EventName.RUN_FINISHED, text="Done", **place)

        await stack.actor("U0DAN").message_with("#general", says("Done"))


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("method", [POST, "conversations.open"])
async def test_who_is_asked_by_direct_message_is_asked_when_the_workspace_takes_it(
    stack: Stack, method: str
) -> None:
    stack.policy = load_policy(DIRECT, "policy.yml")
    async with stack.running():
        # The card is posted in its channel first.
        after = 1 if method == POST else 0
        stack.sandbox.faults.plan(
            Fault.REFUSE, method, error="team_added_to_org", calls=2, after=after
        )
        verdict = await stack.refund()

        await stack.card(verdict, channel="D0ANA")
        assert await stack.card(verdict, channel=CHANNEL)
