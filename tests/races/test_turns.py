"""Calls of one card that start and end at once: each in its turn, from what is true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from tests.service.harness import ANA, ServiceHarness, claim_of
from twokey.gateway.approvals.decisions import Approve, Click, Decision
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import Claimed, ClaimRequest
from twokey.gateway.store.store import Store

REFUND = "process_refund"
SIZE = 56


@pytest.fixture
async def elsewhere(store: Store) -> AsyncGenerator[ServiceHarness]:
    """Give a gateway of another process over the same store."""
    opened = Store(store.conn.url, lease_ms=2000)
    yield ServiceHarness(opened)
    await opened.close()


async def claims_of_batch(
    harness: ServiceHarness, *, approved: int = SIZE
) -> list[ClaimRequest]:
    """Ask for a batch of refunds, and approve the first ones in one gesture."""
    refunds: list[JsonObject] = [{"amount": n + 1} for n in range(SIZE)]
    ref, verdicts = await harness.submit(*((REFUND, args) for args in refunds))
    approval = await harness.approval(verdicts[0].item_id)
    click = Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=approval.digest,
    )
    partition: dict[int, Decision | None] = {
        n: Approve() if n < approved else None for n in range(SIZE)
    }
    await harness.reviews.decide_batch(click, partition, ANA)
    return [claim_of(ref, verdict) for verdict in verdicts]


async def run(harness: ServiceHarness, claims: Sequence[ClaimRequest]) -> list[bool]:
    """Start and end all of these calls at once."""

    async def runs(claim: ClaimRequest) -> bool:
        granted = await harness.agents.claim(claim)
        assert isinstance(granted, Claimed)
        done = Result(ok=True, summary="done")
        return await harness.agents.finish(claim.item_id, granted.fence, done)

    return await asyncio.gather(*map(runs, claims))


async def test_56_calls_that_start_and_end_at_once_take_a_write_each_and_one_reading(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ServiceHarness(store)
    claims = await claims_of_batch(harness)
    together, readings = store.conn.transaction, 0

    async def counted(*commands: Any) -> Any:
        nonlocal readings
        readings += any(command[0] == "HGETALL" for command in commands)
        return await together(*commands)

    monkeypatch.setattr(store.conn, "transaction", counted)

    # Without turns most of them lose their comparison to another one sixteen times.
    found = await run(harness, claims)

    assert all(found)
    assert readings <= 2
    after = await harness.approval(claims[0].item_id)
    assert {item.state for item in after.items} == {ItemState.EXECUTED}
    assert after.rev == 2 + 2 * SIZE


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


async def test_a_claim_in_a_row_knows_what_another_process_approved_before_it(
    store: Store, elsewhere: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ServiceHarness(store)
    claims = await claims_of_batch(harness, approved=1)
    evalsha = store.conn.evalsha

    # The first in the row has written; the second has not been asked yet.
    async def approved_after(*args: Any, **options: Any) -> Any:
        reply = await evalsha(*args, **options)
        if reply[0] == b"done":
            monkeypatch.setattr(store.conn, "evalsha", evalsha)
            click = await elsewhere.click_on(claims[1].item_id)
            await elsewhere.reviews.decide(click, Approve(), ANA)
        return reply

    monkeypatch.setattr(store.conn, "evalsha", approved_after)
    replies = await asyncio.gather(*map(harness.agents.claim, claims[:2]))

    assert [type(reply) for reply in replies] == [Claimed, Claimed]
