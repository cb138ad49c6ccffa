"""Nobody reads by command or Home tab what they could not read anyway."""

from __future__ import annotations

import pytest

from tests.bot.bot_house import CHANNEL, POLICY, TEAM, House
from tests.bot.listeners.test_queue_and_preview import home_of
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.wire import Verdict
from twokey.sandbox.json_types import JsonObject

GENERAL, PRIVATE = "C0GENERAL", "C0PRIVATE"
SECRET = POLICY.replace(
    "lonely: {tier: approve, channel: C0PRIVATE}",
    "lonely: {tier: approve, channel: C0PRIVATE, reviewers: senior}",
)
CHLOE = Person(team=TEAM, user="U0CHLOE", name="chloe")


async def private_call(house: House, requester: Person | None = None) -> Verdict:
    """Let an agent ask in a private channel, where Ana and Chloé are."""
    house.policy = load_policy(SECRET, "policy.yml")
    house.sandbox.control.join(PRIVATE, "U0TWOKEY")
    (verdict,) = await house.submit(("lonely", {"to": "Jane"}), requester=requester)
    await house.card(verdict, channel=PRIVATE)
    return verdict


async def answer(house: House, user: str, words: str, channel: str = GENERAL) -> str:
    person = house.actor(user)
    before = len(await person.ephemerals(channel))
    await person.command("/approvals", words, channel)

    def newest(state: JsonObject) -> list[JsonObject]:
        shown = next(c for c in state["channels"] if c["id"] == channel)["messages"]
        return [m for m in shown if m["ephemeral"]][before:]

    return str((await person.wait_for(newest))[-1]["text"])


@pytest.mark.parametrize("user", ["U0GUEST", "U0STRANGER"])
async def test_guests_and_strangers_are_refused_calmly(house: House, user: str) -> None:
    async with house.running():
        verdict = await house.refund()
        await house.card(verdict)
        approval = (await house.approval(verdict)).id

        for words in ("list", f"show {approval}"):
            told = await answer(house, user, words, CHANNEL)
            assert told == "Only members of this workspace can see what waits."


async def test_a_member_learns_nothing_of_a_private_channel(house: House) -> None:
    async with house.running():
        approval = (await house.approval(await private_call(house))).id

        listed = await answer(house, "U0EVE", "list")
        shown = await answer(house, "U0EVE", f"show {approval}")
        unknown = await answer(house, "U0EVE", f"show ap_s0_{'0' * 32}")

        assert listed.startswith("Nothing waits that you may decide")
        assert shown == unknown
        assert "no such approval" in shown


async def test_who_is_in_the_channel_of_a_card_reads_there_what_waits(
    house: House,
) -> None:
    async with house.running():
        approval = (await house.approval(await private_call(house))).id

        inside = await answer(house, "U0ANA", "list", PRIVATE)
        outside = await answer(house, "U0ANA", "list", GENERAL)

        assert approval in inside
        assert approval not in outside
        assert approval in await answer(house, "U0ANA", f"show {approval}", PRIVATE)


async def test_who_may_decide_or_asked_reads_it_anywhere(house: House) -> None:
    eve = Person(team=TEAM, user="U0EVE", name="eve")
    async with house.running():
        approval = (await house.approval(await private_call(house, eve))).id

        assert approval in await answer(house, "U0EVE", "list")
        assert approval in await answer(house, "U0EVE", f"show {approval}")
        assert approval in await answer(house, "U0CHLOE", "list")


async def test_a_list_that_may_be_incomplete_says_so(house: House) -> None:
    async with house.running():
        approval = (await house.approval(await private_call(house))).id
        await house.bot_is_quiet()
        house.sandbox.control.advance(61)
        house.sandbox.faults.plan("http_500", "usergroups.users.list", calls=99)

        listed = await answer(house, "U0CHLOE", "list")
        shown = await answer(house, "U0CHLOE", f"show {approval}")
        await house.actor("U0CHLOE").open_home()
        state = await house.actor("U0CHLOE").wait_for(
            lambda s: s if s["home"] else None
        )

        for text in (listed, shown, home_of(state)):
            assert "Slack did not say which user groups you are in" in text
            assert approval not in text
        assert "Nothing waits for you" not in home_of(state)
