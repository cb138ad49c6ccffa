"""Many approvals at once are read ahead without holding up clicks, and not in vain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.service.harness import ServiceHarness
from tests.service.showing import at_once, shown
from twokey.gateway.approvals.decisions import Decided
from twokey.gateway.approvals.events import Event
from twokey.gateway.service import as_shown
from twokey.gateway.service.as_shown import AsShownService
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.store import Store

MANY = 45


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


async def no_wait() -> None:
    """There is time."""


async def look(worker: ReviewService) -> None:
    await worker.reading_ahead.look(no_wait, block_ms=1, pause_s=0)


class Turns:
    """How often anything else had its turn in the event loop."""

    def __init__(self) -> None:
        self.count = 0

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None]:
        """Take turns while the block runs."""
        task = asyncio.create_task(self._take())
        try:
            yield
        finally:
            task.cancel()

    async def _take(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


@pytest.fixture
def turns_at(monkeypatch: pytest.MonkeyPatch) -> tuple[Turns, list[int]]:
    """Return how many turns there were at each precomputation."""
    turns, seen, plain = Turns(), list[int](), AsShownService.precompute

    def precompute(service: AsShownService, approval_id: str) -> None:
        seen.append(turns.count)
        plain(service, approval_id)

    monkeypatch.setattr(AsShownService, "precompute", precompute)
    return turns, seen


async def drawn_here(harness: ServiceHarness) -> ReviewService:
    """They were all drawn before anybody came to read them ahead."""
    await look(harness.reviews)
    for _ in range(MANY):
        await shown(harness)
    return harness.reviews


async def waiting(harness: ServiceHarness) -> ReviewService:
    """They wait when this process starts."""
    for _ in range(MANY):
        await shown(harness)
    return ReviewService(harness.store, lambda: harness.policy)


async def drawn_elsewhere(harness: ServiceHarness) -> ReviewService:
    worker = ReviewService(harness.store, lambda: harness.policy)
    await look(worker)
    for _ in range(MANY):
        await shown(harness)
    return worker


Many = Callable[[ServiceHarness], Awaitable[ReviewService]]


@pytest.mark.parametrize("many", [drawn_here, waiting, drawn_elsewhere])
async def test_clicks_have_their_turn_between_any_two_approvals(
    harness: ServiceHarness, turns_at: tuple[Turns, list[int]], many: Many
) -> None:
    """A loop that nobody else gets sees no click, however quiet it finds it."""
    reviews, (turns, seen) = await many(harness), turns_at

    async with turns.taken():
        await look(reviews)

    assert len(seen) == MANY
    assert len({*seen}) == MANY


async def test_clicks_have_their_turn_while_events_are_parsed(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(MANY):
        await shown(harness)
    turns, seen, plain = Turns(), list[int](), Event.model_validate_json

    def parse(body: bytes) -> Event:
        seen.append(turns.count)
        return plain(body)

    monkeypatch.setattr(Event, "model_validate_json", parse)
    outbox = harness.store.outbox(harness.store.keys_of_tenant("default"), reader="")
    async with turns.taken():
        found = await outbox.changes("0-0", block_ms=1)

    assert len(found.opened) == len(seen) == MANY
    assert max(map(seen.count, seen)) < MANY / 2


class Clock:
    """The clock of a process."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_no_more_is_read_ahead_than_fits(
    harness: ServiceHarness,
    turns_at: tuple[Turns, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a hundred thousand, nearly all would be computed to be thrown away."""
    worker, clock, (_, precomputed) = await drawn_elsewhere(harness), Clock(), turns_at
    kept = AsShownService(harness.store, lambda: harness.policy, clock=clock)
    worker.as_shown = kept
    monkeypatch.setattr(worker.reading_ahead, "_kept", kept)
    await worker.read_as_of_now((await shown(harness)).approval)
    [approval_id] = kept._by_id  # pyright: ignore[reportPrivateUsage] - its only one
    kept.precompute(approval_id)
    room = 10
    monkeypatch.setattr(as_shown, "MOST_BYTES", room * kept.bytes)
    precomputed.clear()

    await look(worker)

    assert room / 2 < len(precomputed) <= room
    # A minute later they had their time, and others are read in their place.
    clock.now_s = 60.0
    click = await shown(harness)
    await look(worker)
    assert isinstance(await at_once(worker, click), Decided)


async def test_what_another_policy_said_takes_no_room(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await waiting(harness)
    await look(worker)
    monkeypatch.setattr(as_shown, "MOST_BYTES", worker.as_shown.bytes)
    assert not worker.as_shown.has_room()

    harness.policy = harness.policy.model_copy()

    assert worker.as_shown.has_room()
    await look(worker)
    kept = worker.as_shown
    found = [kept.find(one) for one in kept._by_id]  # pyright: ignore[reportPrivateUsage] - nobody else tells
    assert len(found) > MANY / 2
    assert all(found)
