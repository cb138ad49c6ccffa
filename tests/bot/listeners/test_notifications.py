"""An auto-approved call is shown in one message, with ways to stop and to report it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.bot.limits import POST, UPDATE
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.quality_checks import is_drawn
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject as Args
from keyturn.gateway.protocol.wire import ClaimRequest, TurnRef, Verdict
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, TEAM, Stack, has_button, says
from tests.bot.markup_audit import assert_tame
from tests.bot.strategies import CANARY
from tests.conftest import eventually
from tests.streams import audit_entries

POST_NOTICE: tuple[str, Args] = ("post_notice", {"text": "we are open"})


def shown(message: JsonObject) -> str:
    return json.dumps(message["blocks"], ensure_ascii=False)


async def message_of(
    stack: Stack,
    verdict: Verdict,
    shows: Callable[[JsonObject], object] = bool,
    channel: str = CHANNEL,
) -> JsonObject:
    """Wait for the notification of a call, in a state that satisfies `shows`."""
    return await stack.card(verdict, shows, channel=channel)


async def end(stack: Stack, verdict: Verdict, *, ok: bool = True) -> None:
    """Run a call as the agent."""
    await stack.execute(verdict, ok=ok, summary="posted as *12*")


async def cut_off(stack: Stack, verdict: Verdict) -> None:
    """Let the owner of a call die while it runs."""
    approval = await stack.approval(verdict)
    [item] = approval.items
    ref = TurnRef(agent="support", thread="t1", message_id=approval.message_id)
    request = ClaimRequest(
        item_id=item.id,
        ref=ref,
        tool=item.tool,
        tool_call_id=item.ctx.tool_call_id,
        owner="0" * 32,
    )
    reply = await stack.agents.claim(request)
    assert reply.kind == "new"
    head = stack.keys.head(approval.id)
    await stack.store.conn.transaction(
        ["HSET", head, "0:u", 1],
        ["ZADD", stack.keys.expiry, 1, stack.keys.listed(approval.id)],
    )
    await stack.sweeper.sweep()


async def reported(stack: Stack, user: str, words: str = "") -> dict[str, object]:
    form = {Input.REMARK.value: words}
    return dict(await stack.actor(user).submit(form))


async def test_a_message_shows_a_running_call_and_its_end(live: Stack) -> None:
    (verdict,) = await live.submit(POST_NOTICE)
    first = await message_of(live, verdict)
    assert "Without review" in shown(first)
    assert "we are open" in shown(first)
    assert "<@U0DAN>" in shown(first)
    assert "The policy lists this tool" not in shown(first)

    await end(live, verdict)

    last = await message_of(live, verdict, says("Without review*, done"))
    assert last["ts"] == first["ts"]
    assert "posted as *12*" in shown(last)
    await live.nothing_is_left()
    # It was claimed before it ended; a look in between may have shown that.
    assert len(live.calls(POST)) == 1
    assert len(live.calls(UPDATE)) in {1, 2}


async def test_a_message_of_many_calls_shows_all_of_them(stack: Stack) -> None:
    texts = [f"notice {number}" for number in range(12)]
    notices: list[tuple[str, Args]] = [("post_notice", {"text": one}) for one in texts]
    async with stack.running():
        verdicts = await stack.submit(*notices)
        message = await message_of(stack, verdicts[0])

        assert [text for text in texts if text not in shown(message)] == []
        assert "Freeze tool" in shown(message)


async def test_a_reviewer_freezes_the_tool_and_everybody_is_told(live: Stack) -> None:
    (verdict,) = await live.submit(POST_NOTICE)
    ts = str((await message_of(live, verdict))["ts"])

    await live.actor("U0BEN").click(CHANNEL, ts, Action.FREEZE_TOOL)

    await live.told("U0BEN", "The tool is frozen")
    (freeze,) = await live.reviews.freezes.frozen()
    assert (str(freeze.scope), freeze.by) == ("tool post_notice", f"{TEAM}/U0BEN")
    await live.actor("U0ANA").message_with(
        CHANNEL, lambda m: "*Frozen* by <@U0BEN>" in shown(m)
    )
    (again,) = await live.submit(POST_NOTICE)
    assert not again.item_id
    await live.actor("U0ANA").click(CHANNEL, ts, Action.FREEZE_TOOL)
    await live.told("U0ANA", "frozen already")


async def test_a_report_is_on_message_thread_and_audit_log(live: Stack) -> None:
    (verdict,) = await live.submit(POST_NOTICE)
    message = await message_of(live, verdict)
    eve = live.actor("U0EVE")
    await eve.click(CHANNEL, str(message["ts"]), Action.REPORT)
    await eve.wait_for_view(lambda view: view["callback_id"] == View.REPORT)

    reply = await reported(live, "U0EVE", f"not <!here> {CANARY}")

    assert (reply, await eve.view()) == ({}, None)
    after = await message_of(live, verdict, says("*Reported* by <@U0EVE>"))
    assert_tame(after["blocks"], str(after["text"]))
    assert "not <!here>" in shown(after)
    note = await eve.message_with(
        CHANNEL, lambda m: m["thread_ts"] == message["ts"] and m != message
    )
    assert "*Reported* by <@U0EVE>" in shown(note)
    assert_tame(note["blocks"], str(note["text"]))
    entries = await audit_entries(live.store.conn, live.keys)
    (event,) = [e for e in entries if e.name is EventName.APPROVAL_REPORTED]
    assert (event.actor, event.reason) == (f"{TEAM}/U0EVE", f"not <!here> {CANARY}")
    await eve.click(CHANNEL, str(message["ts"]), Action.REPORT)
    await live.told("U0EVE", "You reported this already")


async def test_hostile_arguments_are_shown_as_text(stack: Stack) -> None:
    hostile = f"<!channel> *b* {CANARY} \u202e"
    stack.put_policy(("{tier: notify}", "{tier: notify, redact: [args.key]}"))
    async with stack.running():
        (verdict,) = await stack.submit(
            ("post_notice", {"text": hostile, "key": "s3cret"})
        )

        message = await message_of(stack, verdict)

        assert_tame(message["blocks"], str(message["text"]))
        assert "s3cret" not in shown(message)
        assert "hidden by policy" in shown(message)
        assert "⟦U+202E⟧" in shown(message)
        assert "Hidden characters" in shown(message)


@pytest.mark.slow
async def test_a_flood_of_notifications_is_one_message(stack: Stack) -> None:
    for number in range(60):
        await stack.submit(POST_NOTICE, POST_NOTICE, thread=f"n{number}")
    verdict = await stack.refund(thread="t2")

    async with stack.running():
        await stack.card(verdict)
        many = await stack.actor("U0ANA").message_with(
            CHANNEL, lambda m: "110 more without review" in shown(m)
        )

        assert "110 of post_notice (support)" in shown(many)
        await stack.nothing_is_left()
        assert len(stack.calls(POST)) == 7


async def test_a_cut_off_call_is_asked_about_and_not_rerun(live: Stack) -> None:
    (verdict,) = await live.submit(POST_NOTICE)
    await message_of(live, verdict)

    await cut_off(live, verdict)

    card = await message_of(live, verdict, says("know whether this ran"))
    assert has_button(card, Action.RECONCILE_EXECUTED)
    assert not has_button(card, Action.RECONCILE_RERUN)
    await live.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.RECONCILE_EXECUTED)
    after = await message_of(live, verdict, says("Without review*, done"))
    assert "it took effect" in shown(after)
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

        await cut_off(stack, verdicts[-1])

        card = await message_of(stack, verdicts[-1], says("know whether this ran"))
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

    async def is_asked() -> bool:
        notes = json.dumps(await live.notes(card))
        is_mentioned = "<!subteam^S0SUPPORT>" in notes
        return is_mentioned and "was this right? Please answer" in notes

    await eventually(is_asked)
    await live.actor("U0ANA").click(CHANNEL, ts, Action.CHECK_RIGHT)
    await live.told("U0ANA", "Someone else has to check")
    await live.actor("U0BEN").click(CHANNEL, ts, Action.CHECK_WRONG)

    await live.told("U0BEN", "Recorded, thank you.")
    card = await live.card(
        verdict, lambda m: "it was *wrong*" in json.dumps(m["blocks"])
    )
    assert not has_button(card, Action.CHECK_WRONG)
