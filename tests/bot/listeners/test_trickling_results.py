"""Results of 99 calls trickle in: the card ends true, and is drawn three times."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import cast

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.submit.proposals import MAX_BATCH
from tests.bot.bot_stack import CHANNEL, Stack, says
from tests.bot.readable import readable
from tests.conftest import eventually


def refunds(count: int = MAX_BATCH) -> list[tuple[str, JsonObject]]:
    return [
        ("process_refund", {"amount": n + 0.5, "order_id": f"{78200 + n}"})
        for n in range(count)
    ]


def updates(stack: Stack, ts: str) -> int:
    """Count how often a card was changed."""
    calls = stack.sandbox.calls
    return sum(
        call.method == "chat.update" and call.arguments["ts"] == ts for call in calls
    )


async def approved(stack: Stack) -> tuple[tuple[Verdict, ...], str]:
    verdicts = await stack.submit(*refunds())
    ts = str((await stack.card(verdicts[0]))["ts"])
    await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)
    await stack.card(verdicts[0], says(f"{MAX_BATCH} approved"))
    return verdicts, ts


async def all_is_told(stack: Stack) -> None:
    """Wait until the bot has done what every event so far asks of it."""
    outbox = stack.store.outbox(stack.keys, reader="slack:default")

    async def is_so() -> bool:
        reply = await stack.store.conn.command(
            "XPENDING", stack.keys.outbox, outbox.reader
        )
        return (
            await outbox.unread_ms() == 0
            and cast("dict[str, int]", reply)["pending"] == 0
        )

    await eventually(is_so)


async def trickle(
    stack: Stack, verdicts: Sequence[Verdict], *, failing: Container[int] = ()
) -> None:
    """Run the calls one after the other, and let the bot draw ten times in between."""
    for place, verdict in enumerate(verdicts):
        is_ok = approval_of(verdict.item_id)[1] not in failing
        await stack.execute(verdict, ok=is_ok, summary="done" if is_ok else "no funds")
        if place % 10 == 0 or not is_ok:
            await all_is_told(stack)


async def notes_with(stack: Stack, ts: str, words: str) -> int:
    messages = await stack.actor("U0ANA").messages(CHANNEL)
    notes = [m for m in messages if m.get("thread_ts") == ts != m["ts"]]
    return sum(words in str(note["blocks"]) for note in notes)


async def test_a_failure_is_told_at_once_and_drawn_at_the_end(live: Stack) -> None:
    verdicts, ts = await approved(live)
    await trickle(live, verdicts[:-1], failing={16})

    assert updates(live, ts) == 1
    assert await notes_with(live, ts, "*Call 17:* ❌ *Approved*, but it failed") == 1
    await live.execute(verdicts[-1])

    card = await live.card(verdicts[0], says("98 done, 1 failed"))
    await live.drawn(verdicts[0])
    assert updates(live, ts) == 2
    text = readable(card["blocks"])
    assert "98 done, 1 failed" in text
    assert "❌ 17. Refund 16.5 for order 78216 (failed: no funds)" in text
