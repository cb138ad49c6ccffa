"""What is remembered of approvals that were shown takes a bounded memory."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.service.harness import ANA, ServiceHarness
from tests.service.showing import shown
from twokey.gateway.approvals.decisions import Approve, Decided
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
    monkeypatch.setattr(as_shown, "MOST_BYTES", 3 * kept.bytes)

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


async def test_what_is_too_large_for_all_is_not_kept(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(as_shown, "MOST_BYTES", 10)

    click = await shown(harness)

    assert harness.reviews.as_shown.find(click.approval) is None
    assert harness.reviews.as_shown.bytes == 0
