"""A share of the executed calls is checked afterwards by an uninvolved person."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.decisions import Approve, Reconcile
from keyturn.gateway.approvals.events import CHECK_ANSWER, EventName
from keyturn.gateway.approvals.quality_checks import (
    NOT_ASKED,
    NOT_YOU,
    TOOK_PART,
    is_drawn,
)
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState, Result, Tier
from keyturn.gateway.protocol.wire import ClaimRequest, TurnRef, Verdict
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.report.audit_reading import StatisticsService
from keyturn.gateway.service.submit.quality_checks import DRAWN
from keyturn.gateway.store.store import Store
from tests.bot.samples import an_item
from tests.levels import examples
from tests.service.harness import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    EVE,
    POLICY,
    ServiceHarness,
    claim_of,
    person,
)

CHECKED = f"{POLICY}spot_checks: {{share: 99%, of: [support, senior]}}\n"


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(CHECKED, "p"))


async def drawn(harness: ServiceHarness, thread: str) -> ClaimRequest:
    """Approve a refund with a drawn check as Ana."""
    for number in range(20):
        click, claim = await harness.refund(number + 1, thread=f"{thread}{number}")
        if is_drawn(await harness.item(claim.item_id), 99):
            await harness.reviews.decide(click, Approve(), ANA)
            return claim
    raise AssertionError("20 calls in a row were not drawn")


async def ran(harness: ServiceHarness, *, ok: bool = True) -> Item:
    """Run a refund that Ana approved and that is drawn; return its item."""
    claim = await drawn(harness, "t")
    granted = await harness.granted(claim)
    for _ in range(2):  # the report may be sent again
        await harness.agents.finish(claim.item_id, granted.fence, Result(ok=ok))
    return await harness.item(claim.item_id)


async def answer(harness: ServiceHarness, item: Item, who: str, **what: bool) -> str:
    approval_id, index = approval_of(item.id)
    return await harness.reviews.spot_checks.answer(
        approval_id, index, person(who), is_right=what.get("is_right", True)
    )


async def events(harness: ServiceHarness, name: EventName) -> list[str]:
    return [one.actor for one in await harness.audited(name)]


async def test_a_second_persons_check_is_counted(harness: ServiceHarness) -> None:
    item = await ran(harness)

    assert await answer(harness, item, CHLOE.user, is_right=False) == ""

    assert len(await events(harness, EventName.ITEM_CHECK_ASKED)) == 1
    assert await events(harness, EventName.ITEM_CHECKED) == ["T0/U0CHLOE"]
    check = (await harness.item(item.id)).spot_check
    assert check is not None
    assert (check.answer, check.by) == ("wrong", CHLOE.person)
    total = (await StatisticsService(harness.store).metrics()).total
    assert (total.audit_yield.part, total.audit_yield.whole) == (1, 1)
    # It is neither a decision nor a separate call.
    assert total.evaluated == total.corrected.whole == 1
    (told,) = await harness.audited(EventName.ITEM_CHECKED)
    assert told.data[CHECK_ANSWER] == "wrong"


@pytest.mark.parametrize(
    ("who", "why"),
    [
        (ANA.user, TOOK_PART),
        (DAN.user, TOOK_PART),
        (EVE.user, NOT_YOU),
    ],
)
async def test_who_took_part_or_is_not_asked_does_not_answer(
    harness: ServiceHarness, who: str, why: str
) -> None:
    item = await ran(harness)

    assert why in await answer(harness, item, who)
    assert await events(harness, EventName.ITEM_CHECKED) == []


async def test_a_failed_call_is_not_checked(harness: ServiceHarness) -> None:
    item = await ran(harness, ok=False)
    checks = harness.reviews.spot_checks

    assert item.spot_check is None
    assert await answer(harness, item, CHLOE.user) == NOT_ASKED
    assert await checks.answer("ap_default_none", 0, CHLOE, is_right=True) == NOT_ASKED
    other = ReviewService(harness.store, lambda: harness.policy, tenant="other")
    found = approval_of(item.id)
    assert await other.spot_checks.answer(*found, CHLOE, is_right=True) == NOT_ASKED


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**52), st.integers(1, 99))
def test_a_drawn_call_is_drawn_at_any_higher_share(salt: int, percent: int) -> None:
    item = an_item({"n": salt})

    assert is_drawn(item, 100)
    assert not is_drawn(item, 0)
    assert not is_drawn(item, percent) or is_drawn(item, percent + 1)


async def test_checks_have_a_daily_limit(harness: ServiceHarness) -> None:
    harness.put_policy(("99%", "99%, per_day: 2"), of=CHECKED)

    found = [await ran(harness) for _ in range(4)]

    assert [bool(item.spot_check) for item in found] == [True, True, False, False]


async def test_no_check_without_anybody_to_ask(harness: ServiceHarness) -> None:
    harness.put_policy(
        ("%, of: [support, senior]", "%, of: [U0ANA, U0DAN]"), of=CHECKED
    )

    # Ana approved it and Dan asked for it.
    assert (await ran(harness)).spot_check is None


async def looked_up(harness: ServiceHarness) -> tuple[TurnRef, Verdict]:
    """Submit a call of tier auto until one is drawn; return it."""
    for number in range(20):
        ref, (verdict,) = await harness.submit(
            ("look_up_order", {"id": number}), thread=f"a{number}"
        )
        if verdict.item_id:
            return ref, verdict
    raise AssertionError("20 calls in a row were not drawn")


async def test_a_drawn_auto_call_is_shown(harness: ServiceHarness) -> None:
    ref, verdict = await looked_up(harness)

    item = await harness.item(verdict.item_id)
    assert (item.tier, item.state) == (Tier.NOTIFY, ItemState.AUTHORIZED)
    assert DRAWN.reason in item.reasons
    # It did not run yet, so it cannot be checked.
    assert await answer(harness, item, BEN.user) == NOT_ASKED
    await harness.ran(claim_of(ref, verdict))
    assert await answer(harness, item, BEN.user) == ""
    total = (await StatisticsService(harness.store).metrics()).total
    assert (total.audit_yield.part, total.audit_yield.whole) == (0, 1)
    assert total.autonomous.rate == 1


async def test_shown_calls_stop_at_the_daily_limit(harness: ServiceHarness) -> None:
    harness.put_policy(("99%", "99%, per_day: 1"), of=CHECKED)
    await looked_up(harness)

    more = [
        (await harness.submit(("look_up_order", {"id": n}), thread=f"b{n}"))[1][0]
        for n in range(20)
    ]

    assert not any(verdict.item_id for verdict in more)


async def doubtful(harness: ServiceHarness) -> tuple[Item, int]:
    """Bring a drawn refund into doubt; return it and its fence."""
    claim = await drawn(harness, "d")
    granted = await harness.granted(claim)
    await harness.doubt(claim.item_id)
    item = await harness.item(claim.item_id)
    assert item.state is ItemState.IN_DOUBT
    return item, granted.fence


async def test_a_doubt_its_executor_ended_is_checked(harness: ServiceHarness) -> None:
    item, fence = await doubtful(harness)
    assert item.spot_check is None

    await harness.agents.finish(item.id, fence, Result(ok=True))

    assert await answer(harness, item, CHLOE.user) == ""


async def test_a_reconciled_call_is_not_checked(harness: ServiceHarness) -> None:
    item, fence = await doubtful(harness)
    decision = Reconcile(finding=Finding.EXECUTED, note="It is in the ledger.")
    await harness.decide(item.id, decision, BEN)

    await harness.agents.finish(item.id, fence, Result(ok=True))

    assert (await harness.item(item.id)).spot_check is None
    assert await events(harness, EventName.ITEM_CHECK_ASKED) == []


async def test_twenty_answers_at_once_count_once(harness: ServiceHarness) -> None:
    item = await ran(harness)

    found = await asyncio.gather(
        *(answer(harness, item, who.user) for who in (BEN, CHLOE) * 10)
    )

    assert sorted(found).count("") == 1
    assert len(await events(harness, EventName.ITEM_CHECKED)) == 1
