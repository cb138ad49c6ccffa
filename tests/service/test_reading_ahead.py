"""What waits is kept by processes that draw no cards, and is decided in one step."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.conftest import eventually
from tests.service.harness import ANA, ServiceHarness
from tests.service.showing import at_once, shown
from twokey.gateway.approvals.decisions import Approve, Click, Decided
from twokey.gateway.approvals.events import Event
from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import CorruptRecord, NewerRecord, StoreUnavailable
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service import reading_ahead
from twokey.gateway.service.call_evaluation import CurrentEvaluation
from twokey.gateway.service.reevaluation import evaluate_waiting
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.store import Store


async def no_wait() -> None:
    """There is time."""


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


@pytest.fixture
def worker(harness: ServiceHarness) -> ReviewService:
    """Return the service of a process that draws no cards."""
    return ReviewService(harness.store, lambda: harness.policy)


async def look(worker: ReviewService) -> None:
    await worker.reading_ahead.look(no_wait, block_ms=1, pause_s=0)


async def opened(harness: ServiceHarness, thread: str, *, amount: int = 7) -> Click:
    _, verdicts = await harness.submit(
        ("process_refund", {"amount": amount}), thread=thread
    )
    return await harness.click(verdicts[0])


async def test_what_waits_at_the_start_is_decided_in_one_step(
    harness: ServiceHarness, worker: ReviewService
) -> None:
    click = await opened(harness, "t1")
    assert await at_once(worker, click) is None

    await look(worker)

    assert isinstance(await at_once(worker, click), Decided)
    item = (await harness.approval(f"{click.approval}.0")).items[0]
    assert item.state is ItemState.AUTHORIZED


async def test_what_is_opened_later_is_decided_in_one_step(
    harness: ServiceHarness, worker: ReviewService
) -> None:
    await look(worker)
    click = await opened(harness, "t1")

    await look(worker)

    assert isinstance(await at_once(worker, click), Decided)


async def test_events_of_clicks_are_taken_many_at_a_time_and_not_parsed(
    harness: ServiceHarness, worker: ReviewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process that answers follows them, and would parse each of them."""
    click = await opened(harness, "t1")
    await look(worker)
    parsed, pauses = list[str](), list[float]()
    plain = Event.model_validate_json

    def parse(body: bytes) -> Event:
        parsed.append(body.decode())
        return plain(body)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Decided)
    monkeypatch.setattr(Event, "model_validate_json", parse)
    monkeypatch.setattr(asyncio, "sleep", pause)
    await worker.reading_ahead.look(no_wait, block_ms=1, pause_s=0.3)
    await worker.reading_ahead.look(no_wait, block_ms=1, pause_s=0.3)

    assert (parsed, pauses) == ([], [0.3])


async def test_what_another_process_decided_is_not_decided_again(
    harness: ServiceHarness, worker: ReviewService
) -> None:
    click = await opened(harness, "t1")
    await look(worker)
    outcome = await harness.reviews.decide(click, Approve(), ANA)
    assert isinstance(outcome, Decided)

    assert await at_once(worker, click) is None
    assert not isinstance(await worker.decide(click, Approve(), ANA), Decided)
    assert await harness.jobs() == harness.jobs_of(1)


async def test_what_another_process_decided_takes_no_memory_here(
    harness: ServiceHarness, worker: ReviewService
) -> None:
    clicks = [await opened(harness, f"t{number}") for number in range(3)]
    await look(worker)
    held = worker.as_shown.bytes
    for click in clicks[:2]:
        assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Decided)

    await look(worker)

    assert 0 < worker.as_shown.bytes < held
    assert isinstance(await at_once(worker, clicks[2]), Decided)
    assert worker.as_shown.bytes == 0


async def test_what_others_did_is_read_once_nobody_clicks(
    harness: ServiceHarness, worker: ReviewService
) -> None:
    """Each process that answers reads what all of them did, which takes its time."""
    click = await opened(harness, "t1")
    await look(worker)
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Decided)
    is_unread = list[bool]()

    async def quiet() -> None:
        is_unread.append(worker.as_shown.find(click.approval) is not None)

    await worker.reading_ahead.look(quiet, block_ms=1, pause_s=0)

    assert is_unread[:1] == [True]
    assert worker.as_shown.find(click.approval) is None


async def test_what_was_read_after_it_changed_is_kept(harness: ServiceHarness) -> None:
    click = await shown(harness)
    kept = harness.reviews.as_shown
    loaded = await harness.store.approvals.load(click.approval)
    assert loaded is not None

    kept.moved(click.approval, loaded.now_ms - 60_000)

    assert kept.find(click.approval) is not None
    kept.moved(click.approval, loaded.now_ms)
    assert kept.find(click.approval) is None


async def test_two_workers_that_read_ahead_have_one_winner(
    harness: ServiceHarness, worker: ReviewService
) -> None:
    other = ReviewService(harness.store, lambda: harness.policy)
    click = await opened(harness, "t1")
    await look(worker)
    await look(other)

    outcomes = await asyncio.gather(at_once(worker, click), at_once(other, click))

    assert sorted(type(one) is Decided for one in outcomes) == [False, True]
    assert await harness.jobs() == harness.jobs_of(1)


async def test_under_another_policy_all_is_evaluated_again(
    harness: ServiceHarness, worker: ReviewService
) -> None:
    click = await opened(harness, "t1")
    await look(worker)
    harness.policy = harness.policy.model_copy()
    assert worker.as_shown.find(click.approval) is None

    await look(worker)

    assert isinstance(await at_once(worker, click), Decided)


async def test_what_was_drawn_here_is_not_read_again(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await look(harness.reviews)
    click = await shown(harness)
    monkeypatch.setattr(harness.store.approvals, "load", _refused)

    await look(harness.reviews)

    assert isinstance(await at_once(harness.reviews, click), Decided)


async def _refused(approval_id: str) -> None:
    raise AssertionError(f"{approval_id} was read again.")


async def test_a_long_queue_is_read_ahead_in_part(
    harness: ServiceHarness, worker: ReviewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_ahead, "MOST", 2)
    clicks = [await opened(harness, f"t{n}", amount=n) for n in range(1, 5)]

    await look(worker)

    assert sum(worker.as_shown.find(one.approval) is not None for one in clicks) == 2


async def test_it_goes_on_after_the_store_was_away(
    harness: ServiceHarness, worker: ReviewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    click, plain = await opened(harness, "t1"), worker.reading_ahead.look
    failures, is_read = [StoreUnavailable("away"), ZeroDivisionError()], asyncio.Event()

    async def failing(*_: object) -> None:
        if failures:
            raise failures.pop()
        await plain(no_wait, block_ms=1, pause_s=0)
        is_read.set()

    monkeypatch.setattr(reading_ahead, "_RETRY_S", 0.001)
    monkeypatch.setattr(worker.reading_ahead, "look", failing)
    running = asyncio.create_task(worker.reading_ahead.run(no_wait))
    try:
        async with asyncio.timeout(30):
            await is_read.wait()
    finally:
        running.cancel()

    assert failures == []
    assert isinstance(await at_once(worker, click), Decided)


async def test_an_outage_is_logged_at_its_begin_and_at_its_end(
    worker: ReviewService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    outages, looks = ["away", "away", "away", "", "away", "away", ""], list[str]()

    async def look(*_: object) -> None:
        if len(looks) == len(outages):
            raise asyncio.CancelledError
        looks.append(outages[len(looks)])
        if looks[-1]:
            raise StoreUnavailable(looks[-1])

    monkeypatch.setattr(reading_ahead, "_RETRY_S", 0.001)
    monkeypatch.setattr(worker.reading_ahead, "look", look)

    with caplog.at_level(logging.INFO), pytest.raises(asyncio.CancelledError):
        await worker.reading_ahead.run(no_wait)

    assert [record.getMessage() for record in caplog.records] == [
        "reading_ahead.paused why=away",
        "reading_ahead.resumed",
    ] * 2


async def test_one_that_cannot_be_evaluated_hides_no_other(
    harness: ServiceHarness, worker: ReviewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sound = await opened(harness, "t1"), await opened(harness, "t2", amount=8)
    seen = list[str]()

    async def evaluate(
        store: Store, policy: Policy, approval: Approval
    ) -> dict[int, CurrentEvaluation]:
        seen.append(approval.id)
        if approval.id == broken.approval:
            raise ZeroDivisionError
        return await evaluate_waiting(store, policy, approval)

    monkeypatch.setattr(reading_ahead, "evaluate_waiting", evaluate)

    await look(worker)
    await look(worker)

    assert isinstance(await at_once(worker, sound), Decided)
    assert worker.as_shown.find(broken.approval) is None
    # Nor is everything read again for it.
    assert sorted(seen) == sorted([broken.approval, sound.approval])


@pytest.mark.parametrize(
    "error",
    [CorruptRecord("broken"), NewerRecord("newer", format=2, known=1)],
    ids=["corrupt", "newer"],
)
async def test_one_that_cannot_be_read_hides_no_later_one(
    harness: ServiceHarness,
    worker: ReviewService,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    await look(worker)
    broken, sound = await opened(harness, "t1"), await opened(harness, "t2", amount=8)
    plain = harness.store.approvals.load

    async def load(approval_id: str) -> Loaded | None:
        if approval_id == broken.approval:
            raise error
        return await plain(approval_id)

    monkeypatch.setattr(harness.store.approvals, "load", load)

    await look(worker)

    assert isinstance(await at_once(worker, sound), Decided)


async def test_what_another_tenant_opened_is_not_read(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ReviewService(harness.store, lambda: harness.policy, tenant="other")
    await look(other)
    click = await opened(harness, "t1")
    monkeypatch.setattr(harness.store.approvals, "load", _refused)

    await look(other)

    assert other.as_shown.find(click.approval) is None


async def test_a_card_that_is_drawn_later_is_precomputed_again(
    harness: ServiceHarness, worker: ReviewService
) -> None:
    """A decision says what its person saw, and Slack takes its time with a card."""
    click, keys = await opened(harness, "t1"), harness.store.keys_of_tenant("default")
    await look(worker)
    before = worker.as_shown.precomputed(click)
    assert before
    assert not before.is_meant_by(click.with_(display_digest="sha256:1"))
    await harness.store.cards.posted(keys, click.approval, channel="C0", ts="1.0")
    await harness.store.cards.shown(
        keys, click.approval, tenant="default", rev=1, display_digest="sha256:1"
    )

    await look(worker)

    seen = worker.as_shown.precomputed(click)
    assert seen
    assert seen.is_meant_by(click.with_(display_digest="sha256:1"))
    assert worker.as_shown.not_precomputed() == []


async def in_a_later_millisecond(harness: ServiceHarness) -> None:
    """Wait: what was read in that of a change may be of before it, and is forgotten."""
    conn = harness.store.conn
    now_ms = await conn.now_ms("")

    async def is_later() -> bool:
        return await conn.now_ms("") > now_ms

    await eventually(is_later)


async def test_what_was_shown_anew_is_precomputed_again(
    harness: ServiceHarness, worker: ReviewService
) -> None:
    click = await opened(harness, "t1")
    await look(worker)
    await harness.reviews.times.extend(click.approval, ANA)
    await in_a_later_millisecond(harness)
    await worker.read_as_of_now(click.approval)
    assert worker.as_shown.precomputed(click) is None

    await look(worker)

    assert worker.as_shown.precomputed(click)


async def test_what_cannot_be_precomputed_is_tried_once(
    harness: ServiceHarness, worker: ReviewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.submit(("wire_money", {"amount": 7}))
    tried, plain = list[str](), worker.as_shown.precompute

    def precompute(approval_id: str) -> None:
        tried.append(approval_id)
        plain(approval_id)

    monkeypatch.setattr(worker.as_shown, "precompute", precompute)
    for _ in range(3):
        await look(worker)

    assert len(tried) == 1
