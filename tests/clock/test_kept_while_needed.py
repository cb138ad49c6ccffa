"""Needed records outlive any time; ended ones are kept for 30 days."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Approve, Click, Edit, Reconcile, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState, Result
from keyturn.gateway.protocol.wire import Claimed, ClaimRequest
from keyturn.gateway.store.store import Store
from tests.clock.conftest import Clock
from tests.lifetimes import is_permanent, listed, wrong_lifetimes
from tests.service.harness import ANA, BEN, ServiceHarness, claim_of
from tests.service.windowed import WINDOWED, refund, refunded
from tests.streams import announced

JUMPS = (1, 25, 35, 130)
AT = ("C0APPROVALS", "1700000000.000001")
OPEN = ItemState.PENDING, ItemState.AUTHORIZED, ItemState.EXECUTING, ItemState.IN_DOUBT
LONG = load_policy(WINDOWED.replace("expires_in: 1h", "expires_in: 30d"), "policy.yml")

Made = tuple[Click, ClaimRequest]
Prepare = Callable[[ServiceHarness, Made], Awaitable[None]]


async def nothing(harness: ServiceHarness, made: Made) -> None:
    """Leave the call pending."""


async def approved(harness: ServiceHarness, made: Made) -> None:
    """Approve it as Ana."""
    await harness.reviews.decide(made[0], Approve(), ANA)


async def edited(harness: ServiceHarness, made: Made) -> None:
    """Edit it as Ana, which lets it run."""
    args = {**(await harness.item(made[1].item_id)).args, "amount": 1}
    await harness.reviews.decide(made[0], Edit(args=args), ANA)
    await ran(harness, made)


async def rejected(harness: ServiceHarness, made: Made) -> None:
    """Reject it as Ana."""
    await harness.reviews.decide(made[0], Reject(reason="no"), ANA)


async def started(harness: ServiceHarness, made: Made) -> None:
    """Begin its execution."""
    await approved(harness, made)
    assert isinstance(await harness.agents.claim(made[1]), Claimed)


async def doubted(harness: ServiceHarness, made: Made) -> None:
    """Let its executor die."""
    await started(harness, made)
    await harness.owner_dies(made[1].item_id)
    await harness.sweeper.sweep()


async def ran(harness: ServiceHarness, made: Made) -> None:
    """Run it to its end."""
    if (await harness.item(made[1].item_id)).state is ItemState.PENDING:
        await approved(harness, made)
    claimed = await harness.agents.claim(made[1])
    assert isinstance(claimed, Claimed)
    result = Result(ok=True, summary="done")
    assert await harness.agents.finish(made[1].item_id, claimed.fence, result)


async def superseded(harness: ServiceHarness, made: Made) -> None:
    """Move its thread on."""
    await harness.agents.supersede(made[1].ref)


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, LONG)


async def carded(harness: ServiceHarness) -> Made:
    """Submit a refund and post its card."""
    ref, (verdict,) = await harness.submit(refund(10))
    made = await harness.click(verdict), claim_of(ref, verdict)
    keys = harness.store.keys_of_tenant("default")
    approval = made[0].approval
    await harness.store.cards.posted(keys, approval, channel=AT[0], ts=AT[1])
    await harness.store.cards.shown(keys, approval, rev=1, display_digest="x")
    return made


async def left(harness: ServiceHarness) -> list[str]:
    """Return the keys that are neither indexes nor streams nor of the thread."""
    names = [str(one, "utf-8") for one in await _names(harness)]
    return [name for name in names if not is_permanent(name)]


async def _names(harness: ServiceHarness) -> list[bytes]:
    found = listed(await harness.store.conn.command("KEYS", "*"))
    return [one for one in found if isinstance(one, bytes)]


@pytest.mark.parametrize(
    "prepare",
    [nothing, approved, started, doubted, ran, edited, rejected, superseded],
    ids=lambda one: one.__name__,
)
async def test_a_call_is_known_until_it_has_ended_and_its_card_as_long(
    harness: ServiceHarness, clock: Clock, prepare: Prepare
) -> None:
    made = await carded(harness)
    await prepare(harness, made)
    keys, approval = harness.store.keys_of_tenant("default"), made[0].approval

    for days in JUMPS:
        clock.move(days=days)
        was_open = (await harness.reviews.read(approval)) is not None and (
            await harness.item(made[1].item_id)
        ).state in OPEN
        await harness.sweeper.sweep()

        assert await wrong_lifetimes(harness.store.conn) == []
        found = await harness.reviews.read(approval)
        place = await harness.store.cards.place(keys, approval)
        assert (found is None) == (place is None)
        assert (await harness.store.cards.shown_at(keys, *AT) != "") == (
            found is not None
        )
        assert found is not None or not was_open, "it ended unseen"


async def test_an_open_record_loses_its_lifetime(harness: ServiceHarness) -> None:
    made, conn = await carded(harness), harness.store.conn
    keys, approval = harness.store.keys_of_tenant("default"), made[0].approval
    for key in (keys.head(approval), keys.document(approval), keys.card(approval)):
        await conn.command("PEXPIRE", key, 60_000)

    await approved(harness, made)

    assert await wrong_lifetimes(conn) == []


async def test_an_extended_card_is_kept(harness: ServiceHarness, clock: Clock) -> None:
    made = await carded(harness)
    approval = made[0].approval
    for days in (25, 15):
        clock.move(days=days)
        assert isinstance(
            await harness.reviews.change_own(approval, waiting_changes.extend, ANA),
            Change,
        )

    clock.move(days=19)
    outcome = await harness.reviews.decide(made[0], Approve(), BEN)

    assert outcome.kind == "decided"
    assert await refunded(harness) == 10
    await ran(harness, made)
    _, again = await harness.submit(refund(10), message_id=made[1].ref.message_id)
    assert again[0].item_id == made[1].item_id, "the turn has its first answer"


async def test_a_doubt_is_asked_again(harness: ServiceHarness, clock: Clock) -> None:
    made = await carded(harness)
    await doubted(harness, made)
    keys = harness.store.keys_of_tenant("default")

    async def reminders() -> int:
        found = await announced(harness.store.conn, keys)
        return sum(one.name is EventName.APPROVAL_STILL_IN_DOUBT for one in found)

    await harness.sweeper.sweep()
    assert await reminders() == 0
    for count, days in enumerate((1, 7, 7), start=1):
        clock.move(days=days, minutes=1)
        await harness.sweeper.sweep()
        await harness.sweeper.sweep()
        assert await reminders() == count

    click = await harness.click_on(made[1].item_id)
    await harness.reviews.decide(click, Reconcile(finding=Finding.SKIP), BEN)
    clock.move(days=8)
    await harness.sweeper.sweep()
    assert await reminders() == 3
    assert await harness.store.conn.command("ZCARD", keys.timers) == 0


async def test_30_days_leave_nothing(harness: ServiceHarness, clock: Clock) -> None:
    first = await carded(harness)
    await doubted(harness, first)
    second = await harness.refund(20)
    await rejected(harness, second)

    clock.move(days=35)
    await harness.sweeper.sweep()
    assert await harness.reviews.read(second[0].approval) is None
    assert first[0].approval in await harness.opened()

    click = await harness.click_on(first[1].item_id)
    await harness.reviews.decide(click, Reconcile(finding=Finding.SKIP), BEN)
    clock.move(days=31)

    # Random ids alone stay longer: their lists may name an approval that is open.
    assert all(":ids:" in name for name in await left(harness))
    clock.move(days=90)
    assert await left(harness) == []
