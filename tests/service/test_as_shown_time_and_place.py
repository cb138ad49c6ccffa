"""When and where somebody clicks is compared where the decision is written."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from tests.conftest import eventually
from tests.service.harness import (
    ANA,
    BEN,
    CHLOE,
    ServiceHarness,
)
from tests.service.showing import Ways, at_once, shown, shown_again
from tests.store_secrets import SECRETS
from twokey.gateway.approvals.decisions import (
    Approve,
    Click,
    Decided,
    Edit,
    Expired,
    Voted,
)
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.as_shown import AsShownService, Place
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

KEYS = Keys("s0")
AN_HOUR = timedelta(hours=1)
HOUR_S = 3_600.0
HOUR_MS = 3_600_000


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


@pytest.fixture(autouse=True, params=["as it comes", "precomputed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shown is decided alike, whether it was precomputed or not."""
    monkeypatch.setattr(Ways, "precomputes", request.param == "precomputed")


async def test_a_call_that_is_late_is_refused_by_a_reading(
    harness: ServiceHarness,
) -> None:
    click = await shown(harness)
    await harness.overdue(click.approval)
    await harness.reviews.read_as_of_now(click.approval)

    assert await at_once(harness.reviews, click) is None
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Expired)


class Clock:
    """The clock of a process, which may go wrong."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(harness: ServiceHarness) -> Clock:
    """Return the clock by which the harness guesses the time of the store."""
    clock = Clock()
    harness.reviews.as_shown = AsShownService(
        harness.store, lambda: harness.policy, clock=clock
    )
    return clock


async def test_the_end_of_its_time_is_that_of_the_store(
    harness: ServiceHarness, clock: Clock
) -> None:
    """The process thinks that no time has passed since it was shown."""
    assert clock.now_s == 0
    _, (verdict,) = await harness.submit(("process_refund", {"amount": 9}))
    conn, keys = harness.store.conn, harness.store.keys_of_tenant("default")
    ends_ms = await conn.now_ms("") + 300
    head = keys.head(f"{verdict.item_id.rpartition('.')[0]}")
    await conn.command("HSET", head, "expires", ends_ms)
    click = await shown_again(harness, verdict)

    async def is_over() -> bool:
        return await conn.now_ms("") >= ends_ms

    await eventually(is_over)

    assert await at_once(harness.reviews, click) is None
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Expired)


async def test_a_reading_that_was_evaluated_late_is_as_good(
    harness: ServiceHarness,
) -> None:
    """Of a queue that was read at once, the last one is evaluated long afterwards."""
    click = await shown(harness)
    read = await harness.reviews.read(click.approval)
    assert read
    late_s = 20.0
    earlier = replace(
        read, now_ms=read.now_ms - int(1000 * late_s), read_s=read.read_s - late_s
    )
    await harness.reviews.as_of_now(earlier)

    assert isinstance(await at_once(harness.reviews, click), Decided)


@pytest.mark.parametrize("wrong_s", [-HOUR_S, HOUR_S / 2])
async def test_a_clock_that_went_wrong_dates_nothing(
    harness: ServiceHarness, clock: Clock, wrong_s: float
) -> None:
    click = await shown(harness)
    clock.now_s = wrong_s
    before_ms = await harness.store.conn.now_ms("")

    assert await at_once(harness.reviews, click) is None
    outcome = await harness.reviews.decide(click, Approve(), ANA)

    assert isinstance(outcome, Decided)
    decision = outcome.approval.items[0].decision
    assert decision
    assert before_ms <= decision.at_ms <= await harness.store.conn.now_ms("")


async def test_what_was_shown_long_ago_is_dated_as_of_now(
    harness: ServiceHarness, clock: Clock
) -> None:
    """Both clocks go on: the reading is half an hour old, its time is not."""
    click = await shown(harness)
    loaded = harness.reviews.as_shown.find(click.approval)
    assert loaded
    clock.now_s = HOUR_S / 2

    later = harness.reviews.as_shown.find(click.approval)

    assert later
    assert later.now_ms == loaded.now_ms + 1_800_000
    assert later.approval is loaded.approval


HERE = Place("C0APPROVALS", "17.1", "U0ANA")


async def posted(harness: ServiceHarness, click: Click, place: Place = HERE) -> None:
    cards = harness.store.cards
    await cards.posted(KEYS, click.approval, channel=place.channel, ts=place.ts)


async def test_a_click_on_the_usable_card_counts(harness: ServiceHarness) -> None:
    click = await shown(harness)
    await posted(harness, click)

    assert isinstance(await at_once(harness.reviews, click, place=HERE), Decided)


@pytest.mark.parametrize(
    "elsewhere", [Place("C0APPROVALS", "17.2", "U0ANA"), Place("C0", "17.1", "U0ANA")]
)
async def test_a_click_on_another_copy_is_looked_at_again(
    harness: ServiceHarness, elsewhere: Place
) -> None:
    click = await shown(harness)
    await posted(harness, click)

    assert await at_once(harness.reviews, click, place=elsewhere) is None
    assert (await harness.item(f"{click.approval}.0")).is_pending


async def test_a_card_that_nobody_registered_is_looked_at_again(
    harness: ServiceHarness,
) -> None:
    click = await shown(harness)

    assert await at_once(harness.reviews, click, place=HERE) is None


async def test_who_stands_in_for_somebody_is_looked_up(
    harness: ServiceHarness,
) -> None:
    click = await shown(harness)
    await posted(harness, click)
    await harness.reviews.delegations.delegate(CHLOE.person, "U0ANA", AN_HOUR)

    assert await at_once(harness.reviews, click, place=HERE) is None


@pytest.mark.parametrize("to", ["U0BEN", "U0AN", "U0ANAX"])
async def test_what_was_handed_to_others_is_theirs(
    harness: ServiceHarness, to: str
) -> None:
    click = await shown(harness)
    await posted(harness, click)
    await harness.reviews.delegations.delegate(CHLOE.person, to, AN_HOUR)

    assert isinstance(await at_once(harness.reviews, click, place=HERE), Decided)


async def test_a_delegation_that_was_withdrawn_or_has_ended_is_none(
    harness: ServiceHarness,
) -> None:
    delegations, conn = harness.reviews.delegations, harness.store.conn
    first, second = await shown(harness), await shown(harness)
    for click in (first, second):
        await posted(harness, click)
    await delegations.delegate(CHLOE.person, "U0ANA", AN_HOUR)
    await delegations.take_back(CHLOE.person)
    assert isinstance(await at_once(harness.reviews, first, place=HERE), Decided)

    # A row that ended stays in the hash until the next change of it.
    await delegations.delegate(BEN.person, "U0EVE", AN_HOUR)
    ended = await conn.now_ms("") - 1
    await conn.command("HSET", KEYS.delegations("default"), "U0X", f"U0ANA {ended}")
    assert isinstance(await at_once(harness.reviews, second, place=HERE), Decided)


NO_VOTE_OF_EDITORS = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS}
roles: {support: {users: [U0ANA, U0BEN]}}
requirements: {other: {of: [support], editor_may_vote: false}}
tools: {process_refund: {needs: other}}
"""


async def test_another_call_of_the_same_number_of_changes_is_noticed(
    store: Store,
) -> None:
    """A master that took over may lack a change that was shown, and have another."""
    harness = ServiceHarness(store, load_policy(NO_VOTE_OF_EDITORS, "policy.yml"))
    _, (verdict,) = await harness.submit(("process_refund", {"amount": 5.0}))
    approval, conn = verdict.item_id.partition(".")[0], store.conn
    keys = [KEYS.head(approval), KEYS.pinned(approval)]
    replica = [await conn.command("DUMP", key) for key in keys]
    seen = await harness.click(verdict)

    async def edited_elsewhere(amount: float) -> None:
        # By a process that knows nothing of the other master's changes.
        away = Store(conn.url, secrets=SECRETS)
        other = ReviewService(away, lambda: harness.policy)
        edit = Edit(args={"amount": amount})
        assert isinstance(await other.decide(seen, edit, BEN), Voted)
        await away.close()

    await edited_elsewhere(6.0)
    click = await shown_again(harness, verdict)
    for key, body in zip(keys, replica, strict=True):
        await conn.command("RESTORE", key, HOUR_MS, cast("bytes", body), "REPLACE")
    await edited_elsewhere(7.0)

    assert await at_once(harness.reviews, click) is None

    # Who read the lost change takes no other one of its number: a process that did not.
    other = Store(conn.url, secrets=SECRETS)
    item = await ServiceHarness(other).item(verdict.item_id)
    assert (item.state, item.args) == (ItemState.PENDING, {"amount": 7.0})
    await other.close()
