"""A thread never forgets a requester who could then approve the call."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.decisions import AccountKind, Approve, Click, Reviewer
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.submit.proposals import FORGOTTEN
from keyturn.gateway.store.store import Store
from tests.clock.conftest import Clock
from tests.lifetimes import lose_records, wrong_lifetimes
from tests.resume import sample_tools
from tests.resume.resume_stack import ANA, ORIGIN, Stack, open_stack

REFUND = '[["refund", {"order": "78291", "amount": 899}]]'
POLICY = load_policy(
    """
version: 1
defaults: {tier: approve, expires_in: 30d, channel: C0APPROVALS, needs: support}
roles: {support: {users: [U0ANA, U0BEN, U0DAN]}}
tools: {refund: {tier: approve}}
""",
    "policy.yml",
)
BEN = Person(team="T0", user="U0BEN", name="Ben")
DAN = Person(team="T0", user="U0DAN", name="Dan")


def reviewer(person: Person) -> Reviewer:
    """Return a person as a possible reviewer."""
    return Reviewer(team=person.team, user=person.user, account=AccountKind.MEMBER)


@pytest.fixture(autouse=True)
def _ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger.txt"))


@pytest.fixture
async def stack(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    async with open_stack(store, tmp_path / "checkpoints.db") as opened:
        opened.policy = POLICY
        opened.reviews = ReviewService(store, lambda: POLICY)
        yield opened


async def asked(stack: Stack, text: str, by: Person) -> None:
    """Send a person's message to the agent in its thread."""
    await stack.reviews.ask_agent("shop", "t1", text, requester=by, origin=ORIGIN)


async def held(stack: Stack, by: Person) -> Item:
    """Request a refund as a person, and wait until it is pending."""
    await asked(stack, REFUND, by)
    [item] = await stack.asked()
    await stack.idle()
    return item


async def approves(stack: Stack, item: Item, by: Reviewer) -> str:
    """Approve an item as a person; return the outcome."""

    async def voters(item: Item) -> list[Reviewer]:
        return [reviewer(vote.by) for vote in item.votes]

    click = Click(
        approval=item.id.rpartition(".")[0],
        index=item.index,
        version=1,
        action_hash=item.action_hash,
    )
    outcome = await stack.reviews.decide(click, Approve(), by, voters=voters)
    return outcome.kind


async def people_of(stack: Stack, item: Item) -> set[str]:
    """Return the requesters in its approval."""
    [approval] = [one for one in await stack.approvals() if item.id.startswith(one.id)]
    return {one.user for one in approval.principals}


async def test_a_long_run_knows_its_requester(stack: Stack, clock: Clock) -> None:
    async with stack.working():
        item = await held(stack, DAN)
        for days in (25, 15):
            clock.move(days=days)
            approval = item.id.rpartition(".")[0]
            await stack.reviews.change_own(approval, waiting_changes.extend, ANA)
        clock.move(days=19)
        assert await wrong_lifetimes(stack.store.conn) == []
        await stack.decide(item)
        await stack.words()
        await stack.idle()

        clock.move(days=25)
        again = await held(stack, BEN)

        assert await people_of(stack, again) == {"U0DAN", "U0BEN"}
        assert await approves(stack, again, reviewer(DAN)) == "forbidden"
        assert await approves(stack, again, ANA) == "decided"
        await stack.words(2)
        await stack.idle()


@pytest.mark.parametrize("loss", ["time", "data"])
async def test_of_a_thread_whose_people_are_forgotten_nobody_approves_alone(
    stack: Stack, clock: Clock, loss: str
) -> None:
    async with stack.working():
        await asked(stack, "hello, pay me when Ben says so", DAN)
        await stack.words()
        await stack.idle()
    if loss == "time":
        clock.move(days=35)
    else:
        await lose_records(stack.store.conn)

    async with stack.working():
        item = await held(stack, BEN)
        assert FORGOTTEN in item.reasons
        assert await approves(stack, item, reviewer(DAN)) == "voted"
        assert await approves(stack, item, reviewer(BEN)) == "forbidden"
        assert await approves(stack, item, ANA) == "decided"
        await stack.words(2)
        await stack.idle()
        again = await held(stack, BEN)
        assert FORGOTTEN in again.reasons, "it stays so"
