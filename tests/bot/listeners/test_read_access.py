"""The command and the Home tab show only what the person could read anyway."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, TEAM, Stack
from tests.bot.listeners.test_review_together import home_of

GENERAL, PRIVATE = "C0GENERAL", "C0PRIVATE"
SECRET = POLICY.replace(
    "lonely: {tier: approve, channel: C0PRIVATE}",
    "lonely: {tier: approve, channel: C0PRIVATE, needs: senior}",
)


async def private_call(stack: Stack, requester: Person | None = None) -> Verdict:
    """Request a call in a private channel, with Ana and Chloé in it."""
    stack.policy = load_policy(SECRET, "policy.yml")
    stack.sandbox.control.join(PRIVATE, "U0KEYTURN")
    (verdict,) = await stack.submit(("lonely", {"to": "Jane"}), requester=requester)
    await stack.card(verdict, channel=PRIVATE)
    return verdict


async def answer(stack: Stack, user: str, words: str, channel: str = GENERAL) -> str:
    person = stack.actor(user)
    before = len(await person.ephemerals(channel))
    await person.command("/approvals", words, channel)

    def newest(state: JsonObject) -> list[JsonObject]:
        shown = next(c for c in state["channels"] if c["id"] == channel)["messages"]
        return [m for m in shown if m["ephemeral"]][before:]

    return str((await person.wait_for(newest))[-1]["text"])


@pytest.mark.parametrize("user", ["U0GUEST", "U0STRANGER"])
async def test_guests_and_strangers_are_refused_calmly(live: Stack, user: str) -> None:
    verdict = await live.refund()
    await live.card(verdict)
    approval = (await live.approval(verdict)).id

    for words in ("list", f"show {approval}"):
        told = await answer(live, user, words, CHANNEL)
        assert told == "Only members of this workspace can do this."


async def test_a_silent_slack_makes_nobody_a_guest(stack: Stack) -> None:
    stack.sandbox.faults.plan("http_500", "users.info", calls=99)
    async with stack.running():
        for words in ("list", "frozen", "delegate off"):
            told = await answer(stack, "U0ANA", words)
            assert told.startswith("Slack did not say who you are. Please try again")


async def test_a_member_learns_nothing_of_a_private_channel(live: Stack) -> None:
    approval = (await live.approval(await private_call(live))).id

    listed = await answer(live, "U0EVE", "list")
    shown = await answer(live, "U0EVE", f"show {approval}")
    unknown = await answer(live, "U0EVE", f"show ap_default_{'0' * 32}")

    assert listed.startswith("Nothing is waiting: no approval to decide")
    assert shown == unknown
    assert "no such approval" in shown


async def test_a_member_of_a_channel_reads_its_cards(live: Stack) -> None:
    approval = (await live.approval(await private_call(live))).id

    inside = await answer(live, "U0ANA", "list", PRIVATE)
    outside = await answer(live, "U0ANA", "list", GENERAL)

    assert short_id(approval) in inside
    assert short_id(approval) not in outside
    shown = await answer(live, "U0ANA", f"show {approval}", PRIVATE)
    assert short_id(approval) in shown


@pytest.mark.parametrize("field", ["at", "in"])
async def test_nobody_reads_by_a_place_that_somebody_wrote_for_a_card(
    live: Stack, field: str
) -> None:
    verdict, refund = await private_call(live), await live.refund(thread="t2")
    await live.drawn(verdict)
    await live.drawn(refund)
    approval = (await live.approval(verdict)).id
    other = await live.approval(refund)
    conn, keys, at = live.store.conn, live.keys, f"{GENERAL} 1.1"
    await conn.command("HSET", keys.card(other.id), "at", at)
    await conn.command("HDEL", keys.card(approval), "at")
    written = at if field == "at" else other.id
    await conn.command("HSET", keys.card(approval), field, written)

    listed = await answer(live, "U0EVE", "list")
    shown = await answer(live, "U0EVE", f"show {approval}")

    assert short_id(approval) not in listed
    assert "no such approval" in shown


@pytest.mark.parametrize(("named", "fallback"), [("#finance", ""), ("C0GONE", PRIVATE)])
async def test_who_reads_where_the_card_was_posted_reads_it_there(
    stack: Stack, named: str, fallback: str
) -> None:
    stack.policy = load_policy(SECRET.replace(PRIVATE, f'"{named}"'), "policy.yml")
    stack.sandbox.control.join(PRIVATE, "U0KEYTURN")
    async with stack.running(fallback_channel=fallback):
        (verdict,) = await stack.submit(("lonely", {"to": "Jane"}))
        await stack.card(verdict, channel=PRIVATE)
        await stack.drawn(verdict)
        short = short_id((await stack.approval(verdict)).id)

        assert short in await answer(stack, "U0ANA", "list", PRIVATE)
        assert short not in await answer(stack, "U0EVE", "list", GENERAL)


async def test_who_may_decide_or_asked_reads_it_anywhere(stack: Stack) -> None:
    eve = Person(team=TEAM, user="U0EVE", name="eve")
    async with stack.running():
        approval = (await stack.approval(await private_call(stack, eve))).id

        short = short_id(approval)
        assert short in await answer(stack, "U0EVE", "list")
        assert short in await answer(stack, "U0EVE", f"show {approval}")
        assert short in await answer(stack, "U0CHLOE", "list")


async def test_a_list_that_may_be_incomplete_says_so(live: Stack) -> None:
    approval = (await live.approval(await private_call(live))).id
    await live.bot_is_quiet()
    live.sandbox.control.advance(61)
    live.sandbox.faults.plan("http_500", "usergroups.users.list", calls=99)

    listed = await answer(live, "U0CHLOE", "list")
    shown = await answer(live, "U0CHLOE", f"show {approval}")
    await live.actor("U0CHLOE").open_home()
    state = await live.actor("U0CHLOE").wait_for(lambda s: s if s["home"] else None)

    for text in (listed, shown, home_of(state)):
        assert "Slack did not say which user groups you are in" in text
        assert short_id(approval) not in text
    assert "Nothing waits for you" not in home_of(state)
