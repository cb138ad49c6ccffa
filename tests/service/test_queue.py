"""The queue shows what waits for a person, whatever else waits or runs."""

from __future__ import annotations

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.people.queue import ReviewQueue
from tests.service.harness import ServiceHarness

REFUND: tuple[str, JsonObject] = ("process_refund", {"amount": 5.0})


async def waiting(harness: ServiceHarness, limit: int = 1000) -> list[str]:
    """Return the threads of what waits, in the order of the queue."""
    found = [loaded async for loaded in harness.reviews.queue.waiting(limit)]
    return [one.approval.thread for one in found]


async def test_every_agent_is_in_the_queue_and_the_soonest_due_comes_first(
    harness: ServiceHarness,
) -> None:
    for agent in ("b", "a", "c"):
        await harness.submit(REFUND, thread=f"of-{agent}", agent=agent)

    assert await waiting(harness) == ["of-b", "of-a", "of-c"]
    assert await waiting(harness, limit=2) == ["of-b", "of-a"]


async def test_a_batch_is_there_once_until_its_last_call_is_decided(
    harness: ServiceHarness,
) -> None:
    _, verdicts = await harness.submit(REFUND, REFUND, thread="mine")
    assert await waiting(harness) == ["mine"]

    await harness.decide(verdicts[0], Reject())
    assert await waiting(harness) == ["mine"]

    await harness.decide(verdicts[1], Reject())
    assert await waiting(harness) == []


async def test_a_short_id_finds_what_begins_with_it_and_no_other_tenants(
    harness: ServiceHarness,
) -> None:
    _, (verdict,) = await harness.submit(REFUND, thread="mine")
    approval = await harness.approval(verdict.item_id)
    other = ReviewQueue(harness.store, tenant="other")
    short = short_id(approval.id)

    (found,) = await harness.reviews.queue.read_short(short)

    assert found.approval == approval
    assert await other.read_short(short) == []
