"""While a card waits, people are reminded under it and others are called."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, REFUND, Stack, has_button, says

WAITING = """tiers:
  approve: {remind_at: 50%, escalate_at: 80%, escalate_to: senior}
  escalate: {needs: with_senior,
             remind_at: 25%, escalate_at: 75%, escalate_to: C0GENERAL}
"""
BEFORE, AFTER = POLICY.index("tiers:"), POLICY.index("tools:")
PATIENT_TEXT = POLICY[:BEFORE] + WAITING + POLICY[AFTER:]
PATIENT = load_policy(PATIENT_TEXT, "policy.yml")
BOT, GENERAL = "U0KEYTURN", "C0GENERAL"
SNOOZED = says("snoozed this card until")


async def test_people_are_reminded_under_the_card_and_then_others_called(
    live: Stack,
) -> None:
    live.policy = PATIENT
    verdict = await live.refund()
    card = await live.card(verdict)

    await live.ring(verdict, TimerKind.REMIND)
    note = await live.note(card, "Still waiting", "<!subteam^S0SUPPORT>")
    assert "U0DAN" not in str(note["blocks"]), "Dan asked for it himself"

    await live.ring(verdict, TimerKind.ESCALATE)
    assert says("senior")(await live.card(verdict, says("Escalated")))
    await live.note(card, "<!subteam^S0SENIOR>")
    assert len(await live.cards(verdict)) == 1


async def test_a_reviewer_says_im_on_it_and_the_card_names_them(live: Stack) -> None:
    verdict = await live.refund()

    await live.click(verdict, Action.TAKE)

    await live.card(verdict, says("<@U0ANA> is on it"))


@pytest.mark.slow
async def test_more_time_is_on_the_card_once_people_were_reminded(live: Stack) -> None:
    live.policy = PATIENT
    verdict = await live.refund()
    assert not has_button(await live.card(verdict), Action.EXTEND)
    before = await live.approval(verdict)
    await live.ring(verdict, TimerKind.REMIND)
    card = await live.card(verdict, lambda m: has_button(m, Action.EXTEND))

    await live.click(verdict, Action.EXTEND)

    await live.note(card, "<@U0ANA> extended the deadline")
    after = await live.approval(verdict)
    assert after.expires_at_ms == before.expires_at_ms + before.ttl_ms // 2


async def snoozed(stack: Stack, *, of: str = POLICY) -> tuple[Verdict, JsonObject]:
    """Return a call that Ana snoozed, and its card."""
    stack.put_policy(("expires_in: 1h", "expires_in: 3h"), of=of)
    verdict = await stack.refund()
    await stack.click(verdict, Action.SNOOZE)
    return verdict, await stack.card(verdict, SNOOZED)


async def test_a_snooze_reminds_its_person_when_it_is_over(live: Stack) -> None:
    verdict, card = await snoozed(live)

    await live.ring(verdict, TimerKind.RELEASE)

    await live.note(card, "<@U0ANA> ⏰ Your snooze is over")
    await live.card(verdict, lambda m: not SNOOZED(m))
    assert (await live.item(verdict)).is_pending


async def test_a_reminder_calls_everybody_and_ends_a_snooze(live: Stack) -> None:
    verdict, card = await snoozed(live, of=PATIENT_TEXT)

    await live.ring(verdict, TimerKind.REMIND)
    await live.note(card, "<!subteam^S0SUPPORT>")
    await live.card(verdict, lambda m: not SNOOZED(m))

    await live.ring(verdict, TimerKind.RELEASE)
    await live.bot_is_quiet()
    assert "Your snooze is over" not in str(await live.notes(card))


async def test_a_card_is_snoozed_until_the_persons_next_morning(live: Stack) -> None:
    live.put_policy(("expires_in: 1h", "expires_in: 48h"))
    # The menu of a card with one call has no room for it; Full details have it.
    calls = [("process_refund", {**REFUND, "amount": amount}) for amount in (8, 9)]
    verdict, _ = await live.submit(*calls)

    await live.click(verdict, Action.SNOOZE_OVERNIGHT, "U0BEN")

    await live.card(verdict, SNOOZED)
    approval = await live.approval(verdict)
    assert approval.acknowledged
    zone = ZoneInfo("Europe/Amsterdam")
    asked, until = (
        datetime.fromtimestamp(ms / 1000, zone)
        for ms in (approval.created_at_ms, approval.acknowledged.until_ms)
    )
    assert (until.hour, until.minute) == (9, 0)
    assert until.date() == asked.date() + timedelta(days=1)


@pytest.mark.parametrize("is_there", [True, False], ids=["told", "the bot left"])
async def test_another_channel_is_told_or_the_thread_says_why_not(
    live: Stack, *, is_there: bool
) -> None:
    live.policy = PATIENT
    if not is_there:
        live.sandbox.control.leave(GENERAL, BOT)
    (verdict,) = await live.submit(("wire_money", {}))
    card = await live.card(verdict)

    await live.ring(verdict, TimerKind.ESCALATE)

    note = await live.note(card, "others are asked too")
    assert says("Notified in")(note) is is_there
    assert says("Could not notify")(note) is not is_there
    assert says("not_in_channel")(note) is not is_there
    if is_there:
        await live.actor("U0ANA").message_with(GENERAL, says("still waits"))
    else:
        assert says("<!subteam^S0SUPPORT>")(note)
    await live.nothing_is_left()


@pytest.mark.slow
async def test_without_a_card_others_are_called_to_the_home_tab(live: Stack) -> None:
    live.policy = PATIENT
    live.sandbox.control.leave(CHANNEL, BOT)
    (verdict,) = await live.submit(("wire_money", {}))
    await live.actor("U0DAN").message_with("D0DAN", says("cannot be posted"))

    await live.ring(verdict, TimerKind.ESCALATE)

    await live.actor("U0ANA").message_with(GENERAL, says("on the Home tab"))
    await live.nothing_is_left()
