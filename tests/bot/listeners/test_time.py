"""While a card waits, people are reminded under it and others are called."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.decisions import Forbidden, Reviewer
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.records.approval_indexes import Timer
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, REFUND, TEAM, Stack, has_button, says
from tests.bot.test_publisher import nothing_is_left
from tests.conftest import eventually

WAITING = """tiers:
  approve: {remind_at: 50%, escalate_at: 80%, escalate_to: senior}
  escalate: {needs: with_senior,
             remind_at: 25%, escalate_at: 75%, escalate_to: C0GENERAL}
"""
BEFORE, AFTER = POLICY.index("tiers:"), POLICY.index("tools:")
PATIENT_TEXT = POLICY[:BEFORE] + WAITING + POLICY[AFTER:]
PATIENT = load_policy(PATIENT_TEXT, "policy.yml")


async def ring(stack: Stack, approval: str, kind: TimerKind) -> None:
    """Move the clock to a timer, and run every replica's sweep."""
    name = str(Timer(approval=approval, kind=kind))
    await stack.store.conn.command("ZADD", stack.keys.timers, "XX", 1, name)
    await stack.sweeper.sweep()


async def test_people_who_may_decide_are_reminded_under_the_card(stack: Stack) -> None:
    stack.policy = PATIENT
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)

        await ring(stack, (await stack.approval(verdict)).id, TimerKind.REMIND)

        await eventually(lambda: has_note(stack, card, "Still waiting"))
        (note,) = [n for n in await stack.notes(card) if says("Still waiting")(n)]
        assert "<!subteam^S0SUPPORT>" in str(note["blocks"])
        assert "U0DAN" not in str(note["blocks"]), "Dan asked for it himself"
        assert len(await stack.cards(verdict)) == 1


async def test_a_called_role_is_named_on_card_and_in_thread(stack: Stack) -> None:
    stack.policy = PATIENT
    async with stack.running():
        verdict = await stack.refund()
        await stack.card(verdict)

        await ring(stack, (await stack.approval(verdict)).id, TimerKind.ESCALATE)

        card = await stack.card(verdict, says("Escalated"))
        assert "senior" in str(card["blocks"])
        await eventually(lambda: has_note(stack, card, "<!subteam^S0SENIOR>"))


async def has_note(stack: Stack, card: JsonObject, words: str) -> bool:
    return any(says(words)(note) for note in await stack.notes(card))


async def test_a_reviewer_says_im_on_it_and_the_card_names_them(live: Stack) -> None:
    verdict = await live.refund()
    card, ana = await live.card(verdict), live.actor("U0ANA")

    await ana.click(CHANNEL, str(card["ts"]), Action.TAKE)

    card = await live.card(verdict, says("<@U0ANA> is on it"))
    await live.actor("U0BEN").click(CHANNEL, str(card["ts"]), Action.APPROVE)
    card = await live.card(verdict, says("Approved"))
    assert "is on it" not in str(card["blocks"])


@pytest.mark.slow
async def test_more_time_is_on_the_card_once_people_were_reminded(stack: Stack) -> None:
    stack.policy = PATIENT
    async with stack.running():
        verdict = await stack.refund()
        assert not has_button(await stack.card(verdict), Action.EXTEND)
        before = await stack.approval(verdict)
        await ring(stack, before.id, TimerKind.REMIND)
        card = await stack.card(verdict, lambda m: has_button(m, Action.EXTEND))

        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.EXTEND)

        await eventually(
            lambda: has_note(stack, card, "<@U0ANA> extended the deadline")
        )
        after = await stack.approval(verdict)
        assert after.expires_at_ms == before.expires_at_ms + before.ttl_ms // 2


async def test_a_snooze_reminds_its_person_when_it_is_over(stack: Stack) -> None:
    stack.put_policy(("expires_in: 1h", "expires_in: 3h"))
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        ana = stack.actor("U0ANA")
        await ana.click(CHANNEL, str(card["ts"]), Action.SNOOZE)
        await stack.card(verdict, says("snoozed this card until"))
        item = await stack.item(verdict)

        await ring(stack, (await stack.approval(verdict)).id, TimerKind.RELEASE)

        await eventually(
            lambda: has_note(stack, card, "<@U0ANA> ⏰ Your snooze is over")
        )
        await stack.card(verdict, lambda m: not says("snoozed this card until")(m))

    assert item.is_pending


async def test_a_reminder_calls_everybody_and_ends_a_snooze(stack: Stack) -> None:
    stack.put_policy(("expires_in: 1h", "expires_in: 3h"), of=PATIENT_TEXT)
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        ana, approval = stack.actor("U0ANA"), await stack.approval(verdict)
        await ana.click(CHANNEL, str(card["ts"]), Action.SNOOZE)
        await stack.card(verdict, says("snoozed this card until"))

        await ring(stack, approval.id, TimerKind.REMIND)
        await eventually(lambda: has_note(stack, card, "<!subteam^S0SUPPORT>"))
        await stack.card(verdict, lambda m: not says("snoozed this card until")(m))

        await ring(stack, approval.id, TimerKind.RELEASE)
        await stack.bot_is_quiet()
        assert not await has_note(stack, card, "Your snooze is over")


async def test_a_card_is_snoozed_until_the_persons_next_morning(stack: Stack) -> None:
    stack.put_policy(("expires_in: 1h", "expires_in: 48h"))
    async with stack.running():
        # The menu of a card with one call has no room for it; Full details have it.
        call = ("process_refund", REFUND)
        verdict, _ = await stack.submit(
            call, ("process_refund", {**REFUND, "amount": 9})
        )
        await stack.click(verdict, Action.SNOOZE_OVERNIGHT, "U0BEN")
        await stack.card(verdict, says("snoozed this card until"))
        approval = await stack.approval(verdict)

    assert approval.acknowledged
    zone = ZoneInfo("Europe/Amsterdam")
    asked, until = (
        datetime.fromtimestamp(ms / 1000, zone)
        for ms in (approval.created_at_ms, approval.acknowledged.until_ms)
    )
    assert (until.hour, until.minute) == (9, 0)
    assert until.date() == asked.date() + timedelta(days=1)


async def test_an_urgent_call_cannot_be_snoozed(stack: Stack) -> None:
    stack.put_policy(("expires_in: 1h", "expires_in: 48h"))
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {"n": 1}))
        card = await stack.card(verdict)
        approval = await stack.approval(verdict)
        ana = Reviewer(team=TEAM, user="U0ANA", usergroups=frozenset({"S0SUPPORT"}))
        until_ms = approval.created_at_ms + 1
        refused = await stack.reviews.change_own(
            approval.id, waiting_changes.snooze, until_ms, ana
        )

    assert not has_button(card, Action.SNOOZE)
    assert isinstance(refused, Forbidden)
    assert "escalated call cannot be snoozed" in refused.reason


async def test_a_card_cannot_be_snoozed_beyond_its_expiry(stack: Stack) -> None:
    async with stack.running():
        card = await stack.card(await stack.refund())

    assert not has_button(card, Action.SNOOZE)


BOT, GENERAL = "U0KEYTURN", "C0GENERAL"


async def line_of(stack: Stack, card: JsonObject) -> JsonObject:
    await eventually(lambda: has_note(stack, card, "others are asked too"))
    (note,) = [n for n in await stack.notes(card) if says("others are asked")(n)]
    return note


async def test_a_channel_that_was_told_is_named_as_told(stack: Stack) -> None:
    stack.policy = PATIENT
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        card = await stack.card(verdict)

        await ring(stack, (await stack.approval(verdict)).id, TimerKind.ESCALATE)

        await stack.actor("U0ANA").message_with(GENERAL, says("still waits"))
        note = await line_of(stack, card)
        assert says("Notified in")(note)
        assert not says("Could not notify")(note)


async def test_reviewers_are_called_in_the_thread_instead(stack: Stack) -> None:
    stack.policy = PATIENT
    stack.sandbox.control.leave(GENERAL, BOT)
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        card = await stack.card(verdict)

        await ring(stack, (await stack.approval(verdict)).id, TimerKind.ESCALATE)

        note = await line_of(stack, card)
        assert says("Could not notify")(note)
        assert says("not_in_channel")(note)
        assert says("<!subteam^S0SUPPORT>")(note)
        assert not says("Notified in")(note)
        await nothing_is_left(stack)


@pytest.mark.slow
async def test_without_a_card_others_are_called_to_the_home_tab(stack: Stack) -> None:
    stack.policy = PATIENT
    stack.sandbox.control.leave(CHANNEL, BOT)
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        await stack.actor("U0DAN").message_with("D0DAN", says("cannot be posted"))

        await ring(stack, (await stack.approval(verdict)).id, TimerKind.ESCALATE)

        told = says("on the Home tab")
        await stack.actor("U0ANA").message_with(GENERAL, told)
        await nothing_is_left(stack)
