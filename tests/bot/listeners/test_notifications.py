"""An auto-approved call is shown in one message, with ways to stop and to report it."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.bot.limits import POST, UPDATE
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.quality_checks import is_drawn
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject as Args
from keyturn.gateway.protocol.wire import Verdict
from tests.bot.bot_stack import (
    CHANNEL,
    POLICY,
    TEAM,
    Stack,
    blocks_of,
    has_button,
    says,
)
from tests.bot.markup_audit import assert_tame
from tests.bot.strategies import CANARY

POST_NOTICE: tuple[str, Args] = ("post_notice", {"text": "we are open"})


async def test_a_message_shows_a_running_call_and_its_end(live: Stack) -> None:
    (verdict,) = await live.submit(POST_NOTICE)
    first = await live.card(verdict, says("Without review"))

    await live.execute(verdict, summary="posted as *12*")

    last = await live.card(verdict, says("Without review*, done"))
    assert last["ts"] == first["ts"]
    assert "posted as *12*" in blocks_of(last)
    await live.nothing_is_left()
    # It was claimed before it ended; a look in between may have shown that.
    assert len(live.calls(POST)) == 1
    assert len(live.calls(UPDATE)) in {1, 2}


async def test_a_reviewer_freezes_the_tool_and_everybody_is_told(live: Stack) -> None:
    (verdict,) = await live.submit(POST_NOTICE)
    ts = str((await live.card(verdict))["ts"])

    await live.actor("U0BEN").click(CHANNEL, ts, Action.FREEZE_TOOL)

    await live.told("U0BEN", "The tool is frozen")
    (freeze,) = await live.reviews.freezes.frozen()
    assert (str(freeze.scope), freeze.by) == ("tool post_notice", f"{TEAM}/U0BEN")
    await live.actor("U0ANA").message_with(
        CHANNEL, lambda m: "*Frozen* by <@U0BEN>" in blocks_of(m)
    )
    await live.actor("U0ANA").click(CHANNEL, ts, Action.FREEZE_TOOL)
    await live.told("U0ANA", "frozen already")


async def test_a_report_is_on_message_thread_and_audit_log(live: Stack) -> None:
    (verdict,) = await live.submit(POST_NOTICE)
    message = await live.card(verdict)
    eve = live.actor("U0EVE")
    await eve.click(CHANNEL, str(message["ts"]), Action.REPORT)
    await eve.wait_for_view(lambda view: view["callback_id"] == View.REPORT)

    assert await eve.submit({Input.REMARK: f"not <!here> {CANARY}"}) == {}

    assert await eve.view() is None
    after = await live.card(verdict, says("*Reported* by <@U0EVE>"))
    assert_tame(after["blocks"], str(after["text"]))
    assert "not <!here>" in blocks_of(after)
    note = await live.note(message, "*Reported* by <@U0EVE>")
    assert_tame(note["blocks"], str(note["text"]))
    (event,) = await live.audit(EventName.APPROVAL_REPORTED)
    assert (event.actor, event.reason) == (f"{TEAM}/U0EVE", f"not <!here> {CANARY}")
    await eve.click(CHANNEL, str(message["ts"]), Action.REPORT)
    await live.told("U0EVE", "You reported this already")


@pytest.mark.slow
async def test_a_flood_of_notifications_is_one_message(stack: Stack) -> None:
    for number in range(60):
        await stack.submit(POST_NOTICE, POST_NOTICE, thread=f"n{number}")
    verdict = await stack.refund(thread="t2")

    async with stack.running():
        await stack.card(verdict)
        many = await stack.actor("U0ANA").message_with(
            CHANNEL, lambda m: "110 more without review" in blocks_of(m)
        )

        assert "110 of post_notice (support)" in blocks_of(many)
        await stack.nothing_is_left()
        assert len(stack.calls(POST)) == 7


async def test_a_cut_off_call_is_asked_about_and_not_rerun(live: Stack) -> None:
    (verdict,) = await live.submit(POST_NOTICE)
    await live.card(verdict)

    await live.worker_dies(verdict)

    card = await live.card(verdict, says("know whether this ran"))
    assert has_button(card, Action.RECONCILE_EXECUTED)
    assert not has_button(card, Action.RECONCILE_RERUN)
    await live.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.RECONCILE_EXECUTED)
    after = await live.card(verdict, says("Without review*, done"))
    assert "it took effect" in blocks_of(after)
    [item] = (await live.approval(verdict)).items
    assert item.state is ItemState.EXECUTED


@pytest.mark.slow
async def test_a_folded_call_in_doubt_has_its_own_message(stack: Stack) -> None:
    verdicts = [
        (await stack.submit(POST_NOTICE, thread=thread))[0]
        for thread in ("n0", "n1", "n2", "n3", "n4", "n5", "t1")
    ]
    async with stack.running():
        await stack.nothing_is_left()
        assert not await stack.cards(verdicts[-1])

        await stack.worker_dies(verdicts[-1])

        card = await stack.card(verdicts[-1], says("know whether this ran"))
        assert has_button(card, Action.RECONCILE_SKIP)


# The card of an executed call asks another person whether it was right.


CHECKED = load_policy(
    f"{POLICY}spot_checks: {{share: 99%, of: [support]}}\n", "policy.yml"
)


async def drawn(stack: Stack) -> Verdict:
    """Ask for a refund that a check is drawn of."""
    stack.policy = CHECKED
    for number in range(20):
        verdict = await stack.refund(thread=f"t{number}", order_id=f"{number}")
        item = (await stack.approval(verdict)).items[approval_of(verdict.item_id)[1]]
        if is_drawn(item, 99):
            return verdict
    raise AssertionError("20 calls in a row were not drawn")


async def test_only_a_colleague_answers_a_spot_check(live: Stack) -> None:
    verdict = await drawn(live)
    ts = str((await live.card(verdict))["ts"])
    await live.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
    await live.execute(verdict)
    card = await live.card(verdict, lambda m: has_button(m, Action.CHECK_WRONG))

    await live.note(card, "<!subteam^S0SUPPORT>", "was this right? Please answer")
    await live.actor("U0ANA").click(CHANNEL, ts, Action.CHECK_RIGHT)
    await live.told("U0ANA", "Someone else has to check")
    await live.actor("U0BEN").click(CHANNEL, ts, Action.CHECK_WRONG)

    await live.told("U0BEN", "Recorded, thank you.")
    card = await live.card(verdict, lambda m: "it was *wrong*" in blocks_of(m))
    assert not has_button(card, Action.CHECK_WRONG)
