"""What is remembered of approvals that were shown takes a bounded memory."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest

from tests.service.harness import ANA, ServiceHarness
from tests.service.showing import shown
from twokey.gateway.approvals.decisions import Approve, Decided
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.service import as_shown
from twokey.gateway.store.store import Store


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


async def test_no_more_is_kept_than_fits(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await shown(harness)
    kept = harness.reviews.as_shown
    monkeypatch.setattr(as_shown, "MOST_BYTES", int(3.5 * kept.bytes))

    clicks = [first, *[await shown(harness) for _ in range(5)]]

    assert kept.bytes <= as_shown.MOST_BYTES
    found = [kept.find(click.approval) is not None for click in clicks]
    assert found == [False, False, False, True, True, True]
    for click in clicks:
        assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Decided)
    assert kept.bytes == 0


async def test_what_is_kept_counts_the_memory_that_it_takes(
    harness: ServiceHarness,
) -> None:
    """A parsed record of a small call takes many times its text."""
    kept, count = harness.reviews.as_shown, 60
    for _ in range(3):
        await shown(harness)
    gc.collect()
    before = kept.bytes
    tracemalloc.start()
    try:
        for _ in range(count):
            await shown(harness)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 0.5 < (kept.bytes - before) / taken < 2


async def test_what_is_precomputed_counts_the_memory_that_it_takes(
    harness: ServiceHarness,
) -> None:
    kept, count = harness.reviews.as_shown, 60
    clicks = [await shown(harness) for _ in range(count)]
    kept.precompute((await shown(harness)).approval)
    gc.collect()
    before = kept.bytes
    tracemalloc.start()
    try:
        for click in clicks:
            kept.precompute(click.approval)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert all(kept.precomputed(click) for click in clicks)
    assert 0.7 < (kept.bytes - before) / taken < 1.5


@pytest.mark.parametrize("letters", ["a", "abcdefghijklmnopqrstuvwxyz0123456789"])
async def test_what_is_remembered_of_a_long_text_counts_unpacked(
    harness: ServiceHarness, letters: str
) -> None:
    """It is stored in few bytes, and kept as it is."""
    chance = random.Random(5)  # noqa: S311 - the same texts in each run
    note = "".join(chance.choices(letters, k=40_000))
    known = harness.store.approvals._known  # pyright: ignore[reportPrivateUsage] - nobody else sees it
    await shown(harness, ("process_refund", {"amount": 1, "note": note}))
    gc.collect()
    before = known.bytes
    tracemalloc.start()
    try:
        for amount in range(2, 12):
            await shown(harness, ("process_refund", {"amount": amount, "note": note}))
        # Its texts belong to what is remembered as well.
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 0.5 < (known.bytes - before) / taken < 1.5


async def test_of_a_card_of_many_calls_nothing_is_precomputed(
    harness: ServiceHarness,
) -> None:
    """Each decision would make what was precomputed of the others useless."""
    kept, most = harness.reviews.as_shown, as_shown.MOST_CALLS
    for count, is_precomputed in ((most, True), (most + 1, False)):
        calls: list[tuple[str, JsonObject]] = [
            ("process_refund", {"amount": 1, "number": n}) for n in range(count)
        ]
        click = await shown(harness, *calls)

        kept.precompute(click.approval)

        assert kept.find(click.approval)
        assert bool(kept.precomputed(click)) is is_precomputed


async def test_what_is_too_large_for_all_is_not_kept(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(as_shown, "MOST_BYTES", 10)

    click = await shown(harness)

    assert harness.reviews.as_shown.find(click.approval) is None
    assert harness.reviews.as_shown.bytes == 0
