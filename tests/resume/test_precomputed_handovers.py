"""A decision that was precomputed hands its thread over as any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.resume.handed import (
    FOREVER_MS,
    REFUND,
    OneTaker,
    asked,
    taken_by_workers,
    undelivered,
)
from tests.resume.resume_stack import ANA, Stack
from twokey.gateway.approvals.decisions import Approve, Click, Decided, Gesture
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service import as_shown, precomputing
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.connection import Argument, Connection, Reply

PRESSED = ANA.with_(gesture=Gesture.BUTTON)


@pytest.fixture(autouse=True)
def forever(stack: Stack) -> None:
    """Let leases and deliveries of this store not end."""
    stack.store.lease_ms = FOREVER_MS


async def precomputed(stack: Stack, item: Item) -> Click:
    """Show an approval, precompute a click on this item of it, and return the click."""
    approval_id = item.id.rpartition(".")[0]
    loaded = await stack.reviews.read_as_of_now(approval_id)
    assert loaded
    stack.reviews.as_shown.precompute(approval_id)
    click = Click(
        approval=approval_id,
        index=item.index,
        version=loaded.approval.version,
        action_hash=item.action_hash,
        request_digest="sha256:" + "a" * 64,
    )
    assert stack.reviews.as_shown.precomputed(click)
    return click


async def known_to(stack: Stack, taker: OneTaker) -> dict[str, Approval]:
    """Return the approvals that a worker is given with a job."""
    delivery = await taker.given(stack)
    assert delivery is not None
    assert delivery.given is not None
    return dict(delivery.given.known)


async def test_a_worker_begins_with_the_answer(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
        click = await precomputed(stack, item)
        taken = taken_by_workers(monkeypatch)

        assert await stack.reviews.as_shown.approve(click, PRESSED)
        await stack.words()
        await stack.idle()

        assert taken == []
    assert await stack.states() == [ItemState.EXECUTED]


async def test_the_worker_is_given_the_record_that_was_written(stack: Stack) -> None:
    item, taker = await asked(stack), OneTaker()
    click = await precomputed(stack, item)
    async with taker.offering(stack):
        assert await stack.reviews.as_shown.approve(click, PRESSED)

        known = await known_to(stack, taker)

    assert await undelivered(stack) == 0
    stored = await stack.store.approvals.load(click.approval)
    assert stored
    assert known == {click.approval: stored.approval}
    [vote] = known[click.approval].items[0].votes
    assert vote.by == PRESSED.person


async def test_of_several_calls_the_worker_reads_the_record(stack: Stack) -> None:
    """The script has compared the one that moved."""
    async with stack.working():
        await stack.ask(REFUND, ("refund", {"order": "2", "amount": 5.0}))
        first, second = await stack.asked(2)
        await stack.idle()
    assert first.id.rpartition(".")[0] == second.id.rpartition(".")[0]
    taker = OneTaker()
    click = await precomputed(stack, first)
    async with taker.offering(stack):
        assert await stack.reviews.as_shown.approve(click, PRESSED)

        assert await known_to(stack, taker) == {}


async def test_a_record_that_was_not_written_is_given_to_nobody(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, taker = await asked(stack), OneTaker()
    click = await precomputed(stack, item)
    whole = cast("Any", precomputing.whole)

    def other(*given: object) -> Loaded | None:
        """Make the record of a click of somebody else."""
        *before, reviewer, key, at_ms = given
        assert reviewer == PRESSED
        named = PRESSED.with_(name="Somebody else")
        return cast("Loaded | None", whole(*before, named, key, at_ms))

    monkeypatch.setattr(as_shown, "whole", other)
    async with taker.offering(stack):
        assert await stack.reviews.as_shown.approve(click, PRESSED)

        assert await known_to(stack, taker) == {}


async def test_where_the_call_moved_since_nobody_is_given_a_job(stack: Stack) -> None:
    item, taker = await asked(stack), OneTaker()
    click = await precomputed(stack, item)
    other = Stack(stack.store, stack.runner)
    assert isinstance(await other.decide(item, Approve()), Decided)
    async with taker.offering(stack):
        assert not await stack.reviews.as_shown.approve(click, PRESSED)

        assert await taker.given(stack) is None


async def test_a_thread_that_another_process_runs_is_not_handed_over(
    stack: Stack,
) -> None:
    item, taker = await asked(stack), OneTaker()
    click, place = await precomputed(stack, item), ("default", "shop", "t1")
    async with stack.store.threads.lease(stack.keys, *place), taker.offering(stack):
        assert await stack.reviews.as_shown.approve(click, PRESSED)

        assert await taker.given(stack) is None
        assert await undelivered(stack) == 1


async def test_a_job_whose_answer_is_lost_is_done_at_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    evalsha, lost = Connection.evalsha, list[str]()

    async def lossy(
        self: Connection,
        source: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        writes: bool = True,
    ) -> list[Reply]:
        reply = await evalsha(self, source, keys, args, writes=writes)
        if "local is_taken" in source and not lost:
            lost.append(source)
            raise StoreUnavailable("The answer is lost.")
        return reply

    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
        click = await precomputed(stack, item)
        monkeypatch.setattr(Connection, "evalsha", lossy)

        with pytest.raises(StoreUnavailable):
            await stack.reviews.as_shown.approve(click, PRESSED)

        await stack.words()
        await stack.idle()
    assert lost
    assert await stack.states() == [ItemState.EXECUTED]
