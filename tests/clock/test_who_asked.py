"""Who asked in a thread is never forgotten in a way that lets them approve it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.clock.conftest import Clock
from tests.lifetimes import lose_records, wrong_lifetimes
from tests.resume import sample_tools
from tests.resume.house import ANA, ORIGIN, House, open_house
from twokey.gateway.approvals.decisions import Approve, Click, Reviewer, Standing
from twokey.gateway.approvals.record import Item
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.records import Person
from twokey.gateway.service.proposals import FORGOTTEN
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.store import Store

REFUND = '[["refund", {"order": "78291", "amount": 899}]]'
POLICY = load_policy(
    """
version: 1
defaults: {tier: approve, expires_in: 30d, channel: C0APPROVALS, reviewers: support}
roles: {support: {users: [U0ANA, U0BEN, U0DAN]}}
tools: {refund: {tier: approve}}
""",
    "policy.yml",
)
BEN = Person(team="T0", user="U0BEN", name="Ben")
DAN = Person(team="T0", user="U0DAN", name="Dan")


def reviewer(person: Person) -> Reviewer:
    """Return a person as one who may decide."""
    return Reviewer(team=person.team, user=person.user, standing=Standing.MEMBER)


@pytest.fixture(autouse=True)
def _ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger.txt"))


@pytest.fixture
async def house(store: Store, tmp_path: Path) -> AsyncGenerator[House]:
    async with open_house(store, tmp_path / "checkpoints.db") as opened:
        opened.policy = POLICY
        opened.reviews = ReviewService(store, lambda: POLICY)
        yield opened


async def asked(house: House, text: str, by: Person) -> None:
    """Let somebody ask the agent in its thread."""
    await house.reviews.ask_agent("shop", "t1", text, requester=by, origin=ORIGIN)


async def held(house: House, by: Person) -> Item:
    """Let somebody ask for a refund, and wait until people are asked."""
    await asked(house, REFUND, by)
    [item] = await house.asked()
    await house.idle()
    return item


async def approves(house: House, item: Item, by: Reviewer) -> str:
    """Let somebody approve an item; return what came of it."""

    async def voters(item: Item) -> list[Reviewer]:
        return [reviewer(vote.by) for vote in item.votes]

    click = Click(
        approval=item.id.rpartition(".")[0],
        index=item.index,
        version=1,
        action_hash=item.action_hash,
    )
    outcome = await house.reviews.decide(click, Approve(), by, voters=voters)
    return outcome.kind


async def people_of(house: House, item: Item) -> set[str]:
    """Return who asked, by what its approval says."""
    [approval] = [one for one in await house.approvals() if item.id.startswith(one.id)]
    return {one.user for one in approval.principals}


async def test_a_run_of_two_months_knows_who_began_it(
    house: House, clock: Clock
) -> None:
    async with house.working():
        item = await held(house, DAN)
        for days in (25, 15):
            clock.move(days=days)
            approval = item.id.rpartition(".")[0]
            await house.reviews.times.extend(approval, ANA)
        clock.move(days=19)
        assert await wrong_lifetimes(house.store.conn) == []
        await house.decide(item)
        await house.words()
        await house.idle()

        clock.move(days=25)
        again = await held(house, BEN)

        assert await people_of(house, again) == {"U0DAN", "U0BEN"}
        assert await approves(house, again, reviewer(DAN)) == "forbidden"
        assert await approves(house, again, ANA) == "settled"
        await house.words(2)
        await house.idle()


@pytest.mark.parametrize("loss", ["time", "data"])
async def test_of_a_thread_whose_people_are_forgotten_nobody_approves_alone(
    house: House, clock: Clock, loss: str
) -> None:
    async with house.working():
        await asked(house, "hello, pay me when Ben says so", DAN)
        await house.words()
        await house.idle()
    if loss == "time":
        clock.move(days=35)
    else:
        await lose_records(house.store.conn)

    async with house.working():
        item = await held(house, BEN)
        assert FORGOTTEN in item.reasons
        assert await approves(house, item, reviewer(DAN)) == "voted"
        assert await approves(house, item, reviewer(BEN)) == "forbidden"
        assert await approves(house, item, ANA) == "settled"
        await house.words(2)
        await house.idle()
        again = await held(house, BEN)
        assert FORGOTTEN in again.reasons, "it stays so"


async def test_a_new_thread_needs_one_person(house: House) -> None:
    async with house.working():
        item = await held(house, DAN)

        assert FORGOTTEN not in item.reasons
        assert await approves(house, item, ANA) == "settled"
        await house.words()
        await house.idle()


async def test_facts_of_an_older_version_are_whole(house: House, clock: Clock) -> None:
    keys = house.keys
    async with house.working():
        await asked(house, "hello", DAN)
        await house.words()
        await house.idle()
        facts = keys.thread_facts("default", "shop", "t1")
        await house.store.conn.command("HDEL", facts, "run")
        clock.move(days=25)
        item = await held(house, BEN)

        assert FORGOTTEN not in item.reasons
        assert await people_of(house, item) == {"U0DAN", "U0BEN"}


async def test_what_is_known_of_a_thread_ends_30_days_after_its_run(
    house: House, clock: Clock
) -> None:
    facts = house.keys.thread_facts("default", "shop", "t1")
    async with house.working():
        await asked(house, "hello", DAN)
        await house.words()
        await house.idle()

    clock.move(days=29)
    assert await house.store.conn.command("EXISTS", facts)
    clock.move(days=2)
    assert not await house.store.conn.command("EXISTS", facts)
