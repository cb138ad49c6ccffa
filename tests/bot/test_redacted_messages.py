"""After their retention, messages in Slack show only how a request ended."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from keyturn.bot.delivery import redacting
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.decisions import Edit, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.protocol.strict_json import JsonObject as Args
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.people.erasing import Eraser
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.store.reviewers.bot_records import Ended
from tests.bot.bot_stack import CHANNEL, NOTIFY_DM, POLICY, Stack, has_button, says
from tests.conftest import eventually

SHARED = POLICY.replace(
    "  send_email: {tier: approve, idempotent: true}",
    "  send_email: {tier: approve, batch: {within: 1s, up_to: 2}}",
)
CANARY = "order-CANARY-4711"
DAY = timedelta(days=1)
OVER = timedelta(0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check for due messages all the time, with the whole limit of updates."""
    monkeypatch.setattr(redacting, "_RESERVE", 0)
    monkeypatch.setattr(redacting, "LOOK_S", 0.02)


async def time_is_over(stack: Stack) -> None:
    """Move the clock so that all recorded messages are due now."""
    key = stack.keys.messages_due
    for member in await rows(stack):
        await stack.store.conn.command("ZADD", key, 1, member)


async def rows(stack: Stack) -> list[bytes]:
    key = stack.keys.messages_due
    return cast("list[bytes]", await stack.store.conn.command("ZRANGE", key, 0, -1))


async def is_forgotten(stack: Stack) -> bool:
    return await rows(stack) == []


async def shown(stack: Stack) -> list[str]:
    """Return the text of all channels."""
    workspace = stack.sandbox.workspace
    return [
        f"{one.text} {one.blocks}"
        for messages in workspace.messages.values()
        for one in messages.values()
    ]


async def is_somewhere(stack: Stack, words: str) -> bool:
    return any(words in one for one in await shown(stack))


async def no_canary(stack: Stack) -> bool:
    return not await is_somewhere(stack, CANARY)


async def decided(stack: Stack, copies: tuple[str, ...] = ()) -> Verdict:
    """Ask, edit and run one call, with everything that is posted about it."""

    async def are_posted() -> bool:
        messages = stack.sandbox.workspace.messages
        return all(CANARY in str(messages[one]) for one in copies)

    args: Args = {"amount": 899, "order_id": CANARY, "note": f"note {CANARY}"}
    (verdict,) = await stack.submit(("process_refund", args))
    await stack.card(verdict)
    await eventually(are_posted)
    changed: Args = {**args, "amount": 5, "note": f"changed {CANARY}"}
    assert await stack.decide(verdict, Edit(args=changed)) == "decided"
    await stack.execute(verdict, ok=False, summary=f"no {CANARY}")
    await stack.drawn(verdict)
    await stack.nothing_is_left()
    return verdict


async def redact(stack: Stack) -> None:
    """Move the clock past the retention, and run a bot until no text is left."""
    await time_is_over(stack)
    async with stack.running(messages_kept=OVER):
        await eventually(lambda: no_canary(stack))


async def test_everything_about_a_request_is_redacted(stack: Stack) -> None:
    stack.put_policy(NOTIFY_DM)
    async with stack.running(messages_kept=DAY):
        verdict = await decided(stack, copies=("D0ANA", "D0BEN"))
        before = [one for one in await shown(stack) if CANARY in one]
    await redact(stack)

    # The card, a copy for each of two people, and the messages in the threads.
    assert len(before) > 3
    [card] = await stack.cards(verdict)
    said = str(card["blocks"])
    assert f"{short_id((await stack.approval(verdict)).id)}: failed." in said
    assert "The audit log keeps what was decided" in said
    assert not has_button(card, Action.TRY_AGAIN)
    told = await stack.audit(EventName.MESSAGES_REDACTED)
    approval = await stack.approval(verdict)
    assert {one.approval for one in told} == {approval.id}
    assert sum(int(one.data["messages"]) for one in told) >= len(before)


async def test_nothing_is_redacted_before_its_time(stack: Stack) -> None:
    async with stack.running(messages_kept=DAY):
        waiting = await stack.refund("t2", note=CANARY)
        await stack.card(waiting)
        await decided(stack)
        before = sorted(await shown(stack))
        await time_is_over(stack)

        async def is_later() -> bool:
            keys, posted = stack.keys, stack.store.posted_messages
            return not await posted.due(keys, 9)

        await eventually(is_later)
        await stack.nothing_is_left()
        after = sorted(await shown(stack))
    await time_is_over(stack)
    async with stack.running(messages_kept=OVER):
        await eventually(lambda: is_somewhere(stack, "details were removed"))
        await eventually(is_later)
        card = await stack.card(waiting)

    assert after == before
    # A pending one is checked again, and its card stays.
    assert has_button(card, Action.APPROVE)
    assert CANARY in str(card["blocks"])


async def test_what_the_store_has_forgotten_is_redacted(stack: Stack) -> None:
    stack.put_policy(NOTIFY_DM)
    async with stack.running(messages_kept=40 * DAY):
        verdict = await decided(stack, copies=("D0ANA", "D0BEN"))
        await time_is_over(stack)

        async def knows_the_end() -> bool:
            approval = (await stack.approval(verdict)).id
            posted = await stack.store.posted_messages.read(stack.keys, approval)
            return posted.ended is not None

        await eventually(knows_the_end)
    approval = (await stack.approval(verdict)).id
    for name in (stack.keys.head(approval), stack.keys.document(approval)):
        await stack.store.conn.command("DEL", name)
    await stack.store.cards.forget_place(stack.keys, approval)
    await redact(stack)

    assert await is_somewhere(stack, f"{short_id(approval)}: failed.")

    async with stack.running(messages_kept=OVER):
        await eventually(lambda: is_forgotten(stack))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["http_500", "lost_response", "rate_limit"])
async def test_it_is_tried_again_where_slack_fails(
    stack: Stack, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redacting, "RETRY", OVER)
    async with stack.running(messages_kept=DAY):
        await decided(stack)
    stack.sandbox.faults.plan(fault, "chat.update", calls=3)

    await redact(stack)


async def test_a_message_that_cannot_be_edited_is_deleted(stack: Stack) -> None:
    async with stack.running(messages_kept=DAY):
        await decided(stack)
    stack.sandbox.control.edit_window(0)
    await redact(stack)

    assert not await is_somewhere(stack, "details were removed")


async def test_calls_that_share_a_card_are_redacted_together(stack: Stack) -> None:
    stack.put_policy(of=SHARED)
    async with stack.running(messages_kept=DAY):
        # The same call twice would get two cards.
        args: list[Args] = [{"to": CANARY, "subject": f"{n}"} for n in range(2)]
        verdicts = [
            (await stack.submit(("send_email", one), thread=f"t{n}"))[0]
            for n, one in enumerate(args)
        ]

        await eventually(lambda: is_somewhere(stack, CANARY))
        for verdict in verdicts:
            await stack.decide(verdict, Reject(reason=CANARY))
        await stack.nothing_is_left()
    await redact(stack)

    assert await is_somewhere(stack, "2 rejected")


async def test_what_is_erased_is_redacted_at_once(stack: Stack) -> None:
    async with stack.running(messages_kept=DAY):
        verdict = await decided(stack)
        approval = (await stack.approval(verdict)).id
        assert sum(CANARY in one for one in await shown(stack)) > 1
        found = await Eraser(stack.store).erase(
            approval, by="cli/eve", is_dry_run=False
        )
        assert found.approvals == (approval,)
        await eventually(lambda: no_canary(stack))

        await eventually(lambda: is_forgotten(stack))

    assert await is_somewhere(stack, "was erased")


async def test_an_erased_card_that_nobody_noted_is_one_sentence(live: Stack) -> None:
    verdict = await live.refund()
    card = await live.card(verdict)
    await live.decide(verdict, Reject(reason=CANARY))
    await live.card(verdict, says("Rejected"))
    approval = (await live.approval(verdict)).id
    # As after a version that noted no messages: nothing else would redact it.
    await live.store.posted_messages.forget(live.keys, approval)

    await Eraser(live.store).erase(approval, by="cli/eve", is_dry_run=False)

    async def is_erased() -> bool:
        messages = await live.actor("U0ANA").messages(CHANNEL)
        [stub] = [one for one in messages if one["ts"] == card["ts"]]
        words = ("process_refund", CANARY, "U0DAN")
        return "was erased" in str(stub) and not any(it in str(stub) for it in words)

    # The reply in its thread may be redacted first.
    await eventually(is_erased)


async def test_forged_words_redact_no_message(stack: Stack) -> None:
    async with stack.running(messages_kept=DAY):
        id_ = (await stack.approval(await decided(stack))).id
    name, conn = stack.keys.messages(id_), stack.store.conn
    forged = Ended(at_ms=1, outcome="a text of somebody")
    await conn.command("HSET", name, "=", forged.model_dump_json())
    await redact(stack)

    assert not await is_somewhere(stack, "somebody")
    told = [one async for one in security_events(stack.store, "default")]
    assert {(one.reason, one.data["about"]) for one in told} == {
        ("seal_wrong", "message")
    }


@pytest.mark.parametrize("written", ["note", "moved note", "card", "copy"])
async def test_an_unnoted_message_is_not_touched(stack: Stack, written: str) -> None:
    async with stack.running(messages_kept=DAY):
        verdict = await decided(stack)
        waiting = await stack.refund("t2", note="waiting")
        card = await stack.drawn(waiting)
    id_, other = [(await stack.approval(one)).id for one in (verdict, waiting)]
    conn, keys, at = stack.store.conn, stack.keys, f"{card.channel} {card.ts}"
    stolen = await conn.command("HGET", keys.messages(other), at)
    assert isinstance(stolen, bytes)
    written_to: dict[str, tuple[str, str, str | bytes]] = {
        "note": (keys.messages(id_), at, "1"),
        "moved note": (keys.messages(id_), at, stolen),
        "card": (keys.card(id_), "at", at),
        "copy": (keys.card(id_), "dm_at U0ANA", at),
    }
    name, field, value = written_to[written]
    await conn.command("HSET", name, field, value)
    before = await stack.card(waiting)

    await redact(stack)

    after = await stack.card(waiting)
    assert after["blocks"] == before["blocks"]
    assert has_button(after, Action.APPROVE)
    told = [one async for one in security_events(stack.store, "default")]
    assert len(told) == ("note" in written)
