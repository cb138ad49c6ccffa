"""What Slack does not say costs a click, and never an approval."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.bot.bot_house import CHANNEL, House
from tests.conftest import eventually
from twokey.bot import membership
from twokey.bot.ids import Action
from twokey.bot.membership import FRESH_S
from twokey.gateway.approvals.record import Item
from twokey.gateway.config import SlackMode
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Verdict
from twokey.gateway.store.store import Store
from twokey.sandbox.faults import Fault
from twokey.sandbox.server import Sandbox

GROUPS = "usergroups.users.list"
USERS = "users.info"
CALLS = ((USERS, 3), (GROUPS, 4))
"""How often a two-person approval asks Slack, by method."""

CUT = {Fault.RESET, Fault.LOST_RESPONSE}
SETTLED = {"U0ANA": ("support",), "U0CHLOE": ("senior",)}


@pytest.fixture
async def house(store: Store) -> AsyncIterator[House]:
    """Give a house over sockets: signatures would not stand a clock that is moved."""
    async with Sandbox() as sandbox:
        yield House(sandbox, store, SlackMode.SOCKET)


async def wire(house: House, number: int) -> Verdict:
    """Let an agent ask for something that two people decide."""
    (verdict,) = await house.submit(("wire_money", {"n": number}), thread=f"t{number}")
    return verdict


async def warmed(house: House, verdict: Verdict) -> str:
    """Return the card's ts, once the bot has asked ahead who may decide it."""
    card = await house.card(verdict)
    since = house.sandbox.clock.now() - 60

    async def is_warm() -> bool:
        calls = [c for c in house.sandbox.calls if c.method == GROUPS and c.at > since]
        return len(calls) >= 2

    await eventually(is_warm)
    await house.bot_is_quiet()
    return str(card["ts"])


async def item_of(house: House, verdict: Verdict) -> Item:
    return (await house.approval(verdict)).items[0]


async def click(house: House, user: str, ts: str) -> list[str]:
    """Approve; return what the person alone was told, once it was told."""
    person = house.actor(user)
    before = len(await person.ephemerals(CHANNEL))
    await person.click(CHANNEL, ts, Action.APPROVE)
    await house.bot_is_quiet()
    return [str(one["text"]) for one in (await person.ephemerals(CHANNEL))[before:]]


async def approve(house: House, user: str, ts: str, verdict: Verdict) -> int:
    """Approve, and once more when Slack did not say enough; return how often."""
    before = (await house.approval(verdict)).rev
    told = await click(house, user, ts)
    if (await house.approval(verdict)).rev > before:
        return 1
    assert [text.partition(" say ")[0] for text in told] == ["Slack did not"]
    assert "nothing was recorded" in told[0]
    wait = re.search(r"click again in (\d+) seconds", told[0])
    house.sandbox.control.advance(float(wait[1]) if wait else 0.0)
    await click(house, user, ts)
    return 2


@pytest.mark.parametrize("fault", list(Fault))
async def test_after_one_failed_lookup_a_second_click_ends_where_no_failure_ends(
    house: House, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "PATIENCE_S", 1.0)
    number = 0
    async with house.running():
        for method, calls in CALLS:
            for nth in range(calls):
                number += 1
                house.sandbox.control.advance(120)
                verdict = await wire(house, number)
                ts = await warmed(house, verdict)
                house.sandbox.control.advance(120)
                house.sandbox.faults.plan(fault, method, seconds=30, after=nth)
                # aiohttp repeats a GET on a connection that was cut under it.
                if fault in CUT:
                    house.sandbox.faults.plan(fault, method, after=nth)

                first = await approve(house, "U0ANA", ts, verdict)
                house.sandbox.control.advance(2 * FRESH_S + 1)
                second = await approve(house, "U0CHLOE", ts, verdict)

                item = await item_of(house, verdict)
                assert {vote.by.user: vote.roles for vote in item.votes} == SETTLED
                assert item.state is ItemState.AUTHORIZED
                clicks = {2, 3} if fault in CUT else {3}
                assert first + second in clicks, (method, nth)
                assert not house.sandbox.faults.next_fault(method)
    assert house.sandbox.problems == []


async def test_a_vote_says_how_old_its_memberships_are(house: House) -> None:
    async with house.running():
        verdict = await wire(house, 1)
        ts = str((await house.card(verdict))["ts"])
        house.sandbox.control.advance(120)
        await click(house, "U0ANA", ts)
        house.sandbox.control.advance(FRESH_S)
        await click(house, "U0CHLOE", ts)

        first, second = (await item_of(house, verdict)).votes
        ages = [one.at_ms - one.membership_at_ms for one in (first, second)]
        assert 0 <= ages[0] < FRESH_S * 1000 <= ages[1] <= 2 * FRESH_S * 1000


async def test_fifty_two_person_approvals_in_a_minute_settle_within_slacks_limits(
    house: House,
) -> None:
    async with house.running():
        cards: list[tuple[Verdict, str]] = []
        for number in range(50):
            verdict = await wire(house, number)
            house.sandbox.control.advance(2)
            cards.append((verdict, str((await house.card(verdict))["ts"])))
        house.sandbox.control.advance(120)
        asked, start = len(house.sandbox.calls), house.sandbox.clock.now()

        for number, (_, ts) in enumerate(cards):
            for user in ("U0ANA", "U0CHLOE"):
                await house.actor(user).click(CHANNEL, ts, Action.APPROVE)
            late_s = house.sandbox.clock.now() - start - 1.2 * (number + 1)
            house.sandbox.control.advance(max(0.0, -late_s))

        states = Counter([(await item_of(house, one)).state for one, _ in cards])
        assert states == {ItemState.AUTHORIZED: 50}
        calls = [c for c in house.sandbox.calls[asked:] if c.method == GROUPS]
        by_group = Counter(call.arguments["usergroup"] for call in calls)
        assert not [call for call in calls if call.error]
        took_s = house.sandbox.clock.now() - start
        assert max(by_group.values()) <= took_s / (2 * FRESH_S) + 1


async def test_a_person_who_gets_the_missing_role_later_can_still_give_it(
    house: House,
) -> None:
    async with house.running():
        verdict = await wire(house, 1)
        ts = str((await house.card(verdict))["ts"])
        await click(house, "U0ANA", ts)
        house.sandbox.control.advance(2 * FRESH_S + 1)
        await click(house, "U0BEN", ts)
        assert (await item_of(house, verdict)).state is ItemState.PENDING

        house.sandbox.control.set_group("S0SENIOR", ["U0CHLOE", "U0ANA"])
        house.sandbox.control.advance(2 * FRESH_S + 1)
        await click(house, "U0ANA", ts)

        item = await item_of(house, verdict)
        assert item.state is ItemState.AUTHORIZED
        assert {vote.by.user for vote in item.votes} == {"U0ANA", "U0BEN"}
