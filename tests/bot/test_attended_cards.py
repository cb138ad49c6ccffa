"""The caller of a call gets the address of its card, and the card its presence."""

from __future__ import annotations

from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.protocol.http_api import Attendance, Attended
from tests.bot.bot_stack import CHANNEL, Stack, says

GONE = "The client has stopped waiting. It can return until"


async def attends(stack: Stack, item_id: str, wait_s: float) -> Attended:
    found = await stack.agents.attend(Attendance(item_id=item_id, wait_s=wait_s))
    await stack.sweeper.sweep()
    return found


async def test_the_card_in_slack_shows_that_its_caller_has_gone(live: Stack) -> None:
    verdict = await live.refund()
    await live.card(verdict)
    await attends(live, verdict.item_id, 0)
    await live.card(verdict, says(GONE))
    await attends(live, verdict.item_id, 60)
    await live.card(verdict, lambda card: not says(GONE)(card))


async def test_only_the_bot_gives_a_card_an_address(live: Stack) -> None:
    verdict = await live.refund()
    card = await live.card(verdict)
    await live.nothing_is_left()
    place = f"/archives/{CHANNEL}/p{str(card['ts']).replace('.', '')}"
    url = (await attends(live, verdict.item_id, 60)).card_url
    assert url.endswith(place)
    key = live.keys.card(approval_of(verdict.item_id)[0])
    stored = await live.store.conn.command("HGET", key, "url")
    assert isinstance(stored, bytes)
    for forged in (b"https://evil.example/", stored.replace(b"/p", b"/q"), b""):
        await live.store.conn.command("HSET", key, "url", forged)
        assert (await attends(live, verdict.item_id, 60)).card_url == ""
