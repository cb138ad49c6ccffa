"""A reviewer asks the requester under the card; the reply is shown on it."""

from __future__ import annotations

from keyturn.bot.ids import Action, Input
from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.record import Inquiry
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, Stack, has_button, says, supporter
from tests.bot.listeners.test_questions import replied

WHY = "Was it broken? <!channel>"


async def ask(
    stack: Stack, verdict: Verdict, text: str = WHY, *, user: str = "U0ANA"
) -> JsonObject:
    """Ask about the card of a call; return the card with the question."""
    person = await stack.click(verdict, Action.ASK_REQUESTER, user)
    await person.wait_for_view()
    await person.submit({Input.QUESTION: text})
    return await stack.card(verdict, says(text.partition(" <")[0]))


async def said(stack: Stack, verdict: Verdict) -> list[tuple[str, str]]:
    """Return the stored authors and texts."""
    kept: tuple[Inquiry, ...] = (await stack.approval(verdict)).inquiries
    return [(one.by.user, one.text) for one in kept]


async def test_a_requester_is_asked_and_replies_there(each_live: Stack) -> None:
    live = each_live
    verdict = await live.refund()

    card = await ask(live, verdict)

    assert "has not replied yet" in str(card["blocks"])
    assert has_button(card, Action.APPROVE)
    note = await live.note(card, "<@U0DAN>, a reviewer has a question", "broken?")
    assert "<@U0ANA>" not in str(note["blocks"])

    told = await replied(live, verdict, "U0DAN", "It was <!here>, see photo.")

    assert "Reviewers see your reply on the card" in told
    card = await live.card(verdict, says("see photo"))
    assert "has not replied yet" not in str(card["blocks"])
    await live.note(card, "<@U0ANA>", "The requester replied")
    assert await said(live, verdict) == [
        ("U0ANA", WHY),
        ("U0DAN", "It was <!here>, see photo."),
    ]
    # It was not decided, and the requester may decide now.
    await live.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
    done = await live.card(verdict, says("Approved"))
    assert "see photo" not in str(done["blocks"])
    assert not has_button(done, Action.ASK_REQUESTER)


async def test_a_reply_after_the_decision_is_told_so(live: Stack) -> None:
    verdict = await live.refund()
    card = await ask(live, verdict)
    await live.actor("U0BEN").click(CHANNEL, str(card["ts"]), Action.APPROVE)
    await live.card(verdict, says("Approved"))

    told = await replied(live, verdict, "U0DAN", "It was.")

    assert "Already approved by <@U0BEN>" in told
    assert await said(live, verdict) == [("U0ANA", WHY)]
    assert (await live.item(verdict)).state is ItemState.AUTHORIZED


async def test_a_question_posted_too_late_mentions_nobody(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
    # The bot is down while both happen; the publisher reads them afterwards.
    approval = await stack.approval(verdict)
    ana = supporter("U0ANA")
    await stack.reviews.change_own(approval.id, waiting_changes.ask, None, ana, WHY)
    await stack.decide(verdict, Approve())
    async with stack.running():
        await stack.card(verdict, says("Approved"))
        await stack.nothing_is_left()

        assert "<@U0DAN>" not in str(await stack.notes(card))
