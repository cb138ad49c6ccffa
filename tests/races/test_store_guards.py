"""The scripts protect themselves, independent of the caller's reading."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Approve, Decision
from keyturn.gateway.approvals.ending import end_overdue
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.lifecycle import UNEXECUTED
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    Refused,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.records.atomic_write import Loaded, Write, WriteMany, write
from keyturn.gateway.store.scripts.fences import Lease, holding
from keyturn.gateway.store.store import Store
from tests.lifetimes import lose_records
from tests.service.harness import ANA, ServiceHarness, claim_of
from tests.store_secrets import SECRETS
from tests.streams import audit_entries


async def written(harness: ServiceHarness, loaded: Loaded, what: Write) -> bool:
    seen = {loaded.approval.id: loaded}
    return bool(await write(harness.store.conn, harness.keys, seen, WriteMany([what])))


async def test_a_heartbeat_keeps_a_claim_undoubted(harness: ServiceHarness) -> None:
    click, claim = await harness.refund()
    await harness.reviews.decide(click, Approve(), ANA)
    started = await harness.granted(claim)
    await harness.owner_dies(claim.item_id)
    loaded = await harness.reviews.read(click.approval)
    assert loaded
    change = end_overdue(loaded.approval, loaded.now_ms)
    assert change

    assert await harness.agents.heartbeat(claim.item_id, started.fence)
    is_written = await written(harness, loaded, Write(change))

    assert not is_written
    assert (await harness.item(claim.item_id)).state is ItemState.EXECUTING


@pytest.mark.parametrize("state", sorted(set(ItemState) - {ItemState.AUTHORIZED}))
async def test_a_claim_is_granted_only_of_what_is_authorized(
    harness: ServiceHarness, state: ItemState
) -> None:
    click, claim = await harness.refund()
    await harness.reviews.decide(click, Approve(), ANA)
    await harness.command(
        "HSET", harness.keys.head(click.approval), "0:s", state, "0:u", 2**52
    )
    answer = await harness.agents.claim(claim)

    # It was written by hand, so no script gave it the lifetime of ended records.
    await lose_records(harness.store.conn)
    assert not isinstance(answer, Claimed)
    if state in UNEXECUTED | {ItemState.PENDING}:
        assert isinstance(answer, Refused)
        assert answer.state is state


async def test_a_turn_that_two_processes_submit_at_once_is_opened_once(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, both = harness.store.agent_load.load, asyncio.Barrier(2)

    async def at_once(*args: Any, **named: Any) -> Any:
        found = await load(*args, **named)
        # Neither has seen what the other one opens.
        if not found.verdicts:
            await both.wait()
        return found

    monkeypatch.setattr(harness.store.agent_load, "load", at_once)
    call: tuple[str, JsonObject] = ("process_refund", {"amount": 5.0})
    async with asyncio.timeout(60):
        (_, first), (_, second) = await asyncio.gather(
            harness.submit(call, message_id="m"), harness.submit(call, message_id="m")
        )

    assert first == second
    assert len([loaded async for loaded in harness.reviews.queue.waiting()]) == 1


# Calls of one card that start and end at once: each in its turn, from current data.

KEYS = Keys("default")
REFUND = "process_refund"
SIZE = 56


@pytest.fixture
async def elsewhere(store: Store) -> AsyncGenerator[ServiceHarness]:
    """Give a gateway of another process over the same store."""
    opened = Store(store.conn.url, secrets=SECRETS, lease_ms=2000)
    opened.keyring = store.keyring
    yield ServiceHarness(opened)
    await opened.close()


async def claims_of_batch(
    harness: ServiceHarness, *, approved: int = SIZE
) -> list[ClaimRequest]:
    """Ask for a batch of refunds, and approve the first ones in one gesture."""
    refunds: list[JsonObject] = [{"amount": n + 1} for n in range(SIZE)]
    ref, verdicts = await harness.submit(*((REFUND, args) for args in refunds))
    approval = await harness.approval(verdicts[0].item_id)
    partition: dict[int, Decision | None] = {
        n: Approve() if n < approved else None for n in range(SIZE)
    }
    await harness.decide_card(approval, partition)
    return [claim_of(ref, verdict) for verdict in verdicts]


async def run(harness: ServiceHarness, claims: Sequence[ClaimRequest]) -> list[bool]:
    """Start and end all of these calls at once."""

    async def runs(claim: ClaimRequest) -> bool:
        granted = await harness.granted(claim)
        done = Result(ok=True, summary="done")
        return await harness.agents.finish(claim.item_id, granted.fence, done)

    return await asyncio.gather(*map(runs, claims))


async def test_56_calls_that_start_and_end_at_once_all_run(store: Store) -> None:
    harness = ServiceHarness(store)
    claims = await claims_of_batch(harness)

    # Without turns most of them lose their comparison to another one sixteen times.
    found = await run(harness, claims)

    assert all(found)
    after = await harness.approval(claims[0].item_id)
    assert {item.state for item in after.items} == {ItemState.EXECUTED}
    counted_events = Counter(one.name for one in await audit_entries(store.conn, KEYS))
    assert counted_events[EventName.ITEM_EXECUTING] == SIZE
    assert counted_events[EventName.ITEM_EXECUTED] == SIZE


async def test_calls_of_one_card_in_two_processes_all_start_and_end(
    store: Store, elsewhere: ServiceHarness
) -> None:
    harness = ServiceHarness(store)
    claims = await claims_of_batch(harness)

    found = await asyncio.gather(
        run(harness, claims[::2]), run(elsewhere, claims[1::2])
    )

    assert all(map(all, found))
    after = await harness.approval(claims[0].item_id)
    assert {item.state for item in after.items} == {ItemState.EXECUTED}


async def test_a_call_that_must_not_start_stops_no_other(store: Store) -> None:
    harness = ServiceHarness(store)
    claims = await claims_of_batch(harness, approved=3)

    replies = await asyncio.gather(*map(harness.agents.claim, claims[:4]))

    assert [type(reply) for reply in replies] == [Claimed, Claimed, Claimed, Refused]


async def test_who_is_cancelled_in_their_turn_keeps_no_other_from_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ServiceHarness(store)
    claims = await claims_of_batch(harness)
    evalsha, writing, slow = store.conn.evalsha, asyncio.Event(), asyncio.Event()

    async def late(script: str, *args: Any, **options: Any) -> Any:
        if "-- ARGV[5..] changes" in script:
            writing.set()
            await slow.wait()
        return await evalsha(script, *args, **options)

    monkeypatch.setattr(store.conn, "evalsha", late)
    first = asyncio.create_task(harness.agents.claim(claims[0]))
    others = [asyncio.create_task(harness.agents.claim(one)) for one in claims[1:]]
    await writing.wait()
    first.cancel()
    slow.set()

    replies = await asyncio.gather(first, *others, return_exceptions=True)

    assert isinstance(replies[0], asyncio.CancelledError)
    assert {type(one) for one in replies[1:]} == {Claimed}


async def test_two_holders_calls_are_written_apart(store: Store) -> None:
    """The one that was replaced is refused; the other one's calls start."""
    harness = ServiceHarness(store)
    claims = await claims_of_batch(harness)
    thread = claims[0].ref.thread

    async with store.threads.lease(KEYS, "support", thread) as former:
        await store.conn.command("DEL", former.key)
        async with store.threads.lease(KEYS, "support", thread) as holder:
            tasks = [
                asyncio.create_task(_under(lease, harness, claim))
                for lease, claim in zip((holder, former) * 3, claims, strict=False)
            ]
            replies = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(one) for one in replies] == [Claimed, LeaseLost] * 3


async def _under(
    lease: Lease, harness: ServiceHarness, claim: ClaimRequest
) -> ClaimReply:
    with holding(lease):
        return await harness.agents.claim(claim)
