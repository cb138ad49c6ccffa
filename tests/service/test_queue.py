"""The queue shows what waits for a person, whatever else waits or runs."""

from __future__ import annotations

import pytest

from tests.service.desk import ANA, Desk, claim_of
from twokey.gateway.approvals.decisions import Approve, Reject
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import Claimed, ProposedCall, Turn, TurnRef
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.queue import ReviewQueue
from twokey.gateway.store.store import Store

REFUND: tuple[str, JsonObject] = ("process_refund", {"amount": 5.0})
CROWD = 120


@pytest.fixture
def desk(store: Store) -> Desk:
    """Give agents and reviewers."""
    return Desk(store)


async def waiting(desk: Desk, limit: int = 1000) -> list[str]:
    """Return the threads of what waits, in the order of the queue."""
    found = await desk.reviews.waiting(limit)
    return [one.approval.thread for one in found]


async def test_what_other_tenants_wait_for_hides_nothing(desk: Desk) -> None:
    other = AgentService(desk.store, lambda: desk.policy, tenant="other")
    for number in range(CROWD):
        ref = TurnRef(agent="support", thread=f"o{number}", message_id="m")
        call = ProposedCall(tool=REFUND[0], args={"amount": 5.0}, tool_call_id="c")
        await other.submit(Turn(ref=ref, calls=(call,)))
    await desk.submit(REFUND, thread="mine")

    assert await waiting(desk) == ["mine"]
    theirs = [one async for one in ReviewQueue(desk.store, tenant="other").waiting()]
    assert len(theirs) == CROWD


async def test_what_executes_hides_nothing(desk: Desk) -> None:
    await desk.submit(REFUND, thread="mine")
    for number in range(CROWD):
        ref, [verdict] = await desk.submit(REFUND, thread=f"t{number}")
        await desk.reviews.decide(await desk.click(verdict), Approve(), ANA)
        assert isinstance(await desk.agents.claim(claim_of(ref, verdict)), Claimed)

    assert await waiting(desk) == ["mine"]


async def test_every_agent_is_in_the_queue_and_the_soonest_due_comes_first(
    desk: Desk,
) -> None:
    for agent in ("b", "a", "c"):
        await desk.submit(REFUND, thread=f"of-{agent}", agent=agent)

    assert await waiting(desk) == ["of-b", "of-a", "of-c"]
    assert await waiting(desk, limit=2) == ["of-b", "of-a"]


async def test_a_batch_is_there_once_until_its_last_call_is_decided(desk: Desk) -> None:
    _, verdicts = await desk.submit(REFUND, REFUND, thread="mine")
    assert await waiting(desk) == ["mine"]

    await desk.reviews.decide(await desk.click(verdicts[0]), Reject(), ANA)
    assert await waiting(desk) == ["mine"]

    await desk.reviews.decide(await desk.click(verdicts[1]), Reject(), ANA)
    assert await waiting(desk) == []


async def test_what_a_version_without_the_index_opened_is_found(desk: Desk) -> None:
    await desk.submit(REFUND, thread="mine")
    keys = desk.store.keys_of_tenant("default")
    await desk.store.conn.command("DEL", keys.agents("default"))

    assert await waiting(desk) == ["mine"]
    assert await waiting(desk) == ["mine"]


async def test_junk_in_the_queue_hides_nothing(desk: Desk) -> None:
    await desk.submit(REFUND, thread="mine")
    keys = desk.store.keys_of_tenant("default")
    junk: list[str | bytes] = ["junk", b"\xff.0", "ap_s0_x.0", f"ap_s0_{'0' * 32}.x"]
    rows: list[str | bytes] = [part for one in junk for part in ("1", one)]
    await desk.store.conn.command("ZADD", keys.waiting("default", "support"), *rows)

    assert await waiting(desk) == ["mine"]
