"""What a waiting call needs follows its windows, and never falls below its opening."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.decide.reviews import MAX_REEVALUATED
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, BEN, ServiceHarness, still_members
from tests.service.windowed import refund, windowed


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return windowed(store)


async def shown(harness: ServiceHarness, item_id: str) -> Item:
    """Return an item as its card is to show it."""
    approval = await harness.approval(item_id)
    loaded = await harness.reviews.read_as_of_now(approval.id)
    assert loaded
    return loaded.approval.items[0]


async def two(harness: ServiceHarness) -> tuple[str, str]:
    """Open two refunds that are over the limit together."""
    found: list[str] = []
    for thread in ("t1", "t2"):
        _, verdicts = await harness.submit(refund(700), thread=thread)
        found.append(verdicts[0].item_id)
    return found[0], found[1]


async def over(harness: ServiceHarness, item_id: str) -> None:
    outcome = await harness.decide(item_id, Reject(reason="no"), BEN)
    assert outcome.kind == "decided"


async def test_what_a_vote_raised_is_raised_no_longer_than_its_cause(
    harness: ServiceHarness,
) -> None:
    first, second = await two(harness)
    voted = await harness.decide(first, Approve())
    raised = await shown(harness, first)

    await over(harness, second)

    assert (voted.kind, raised.tier) == ("voted", Tier.ESCALATE)
    again = await shown(harness, first)
    assert (again.tier, again.floor, len(again.votes)) == (Tier.APPROVE, None, 1)
    decided = await harness.decide(first, Approve(), BEN)
    item = await harness.item(first)
    assert (decided.kind, item.state) == ("decided", ItemState.AUTHORIZED)
    assert [vote.by.user for vote in item.votes] == ["U0ANA", "U0BEN"]


async def test_who_voted_already_is_asked_for_nobody_else_once_they_are_enough(
    harness: ServiceHarness,
) -> None:
    first, second = await two(harness)
    click = await harness.click_on(first)
    await harness.reviews.decide(click, Approve(), ANA)
    too_early = await harness.reviews.decide(
        click, Approve(), ANA, voters=still_members
    )
    await over(harness, second)

    decided = await harness.reviews.decide(click, Approve(), ANA, voters=still_members)

    assert (too_early.kind, decided.kind) == ("forbidden", "decided")
    assert len((await harness.item(first)).votes) == 1


async def test_nothing_falls_below_what_a_call_was_opened_with(
    harness: ServiceHarness,
) -> None:
    first, second = await two(harness)
    await over(harness, first)

    item = await shown(harness, second)

    assert (item.tier, item.requirement.approvals) == (Tier.ESCALATE, 2)
    voted = await harness.decide(second, Approve())
    assert voted.kind == "voted"
    item = await harness.item(second)
    assert (item.tier, item.requirement.approvals) == (Tier.ESCALATE, 2)


async def test_what_an_edit_raised_stays_raised(harness: ServiceHarness) -> None:
    _, verdicts = await harness.submit(refund(700))
    _, other = await harness.submit(refund(200), thread="t2")
    args: JsonObject = {"amount": 900, "customer": "c7"}
    await harness.decide(verdicts[0].item_id, Edit(args=args))

    await over(harness, other[0].item_id)

    item = await shown(harness, verdicts[0].item_id)
    assert (item.tier, item.floor) == (Tier.ESCALATE, None)


async def test_what_is_shown_is_never_written(harness: ServiceHarness) -> None:
    first, _ = await two(harness)
    before = await harness.approval(first)

    assert (await shown(harness, first)).floor is not None

    assert await harness.approval(first) == before


async def test_only_calls_that_count_in_windows_are_evaluated_again(
    harness: ServiceHarness,
) -> None:
    await harness.submit(("send_email", {}), thread="t0")
    first, second = await two(harness)

    found = await harness.reviews.reevaluated()

    ids = {loaded.approval.items[0].id for loaded in found}
    assert ids == {first, second}
    assert len(await harness.reviews.reevaluated(1)) <= 1 < MAX_REEVALUATED
