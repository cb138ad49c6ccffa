"""The storage of one API key in a day is bounded, and executions are still reported."""

from __future__ import annotations

import pytest

from keyturn.gateway.api.operations import stored_bytes
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.protocol.http_api import OPERATIONS, Scope
from keyturn.gateway.protocol.wire import Claimed, ProposedCall, Turn, TurnRef
from tests.api.api_stack import ApiStack
from tests.service.harness import ANA

MB = 1_000_000


@pytest.mark.parametrize("size", [1, 40_000, 400_000])
@pytest.mark.parametrize(("ends_work", "most"), [(False, 2 * MB), (True, 3 * MB)])
def test_a_day_stores_no_more_than_it_may(
    size: int, most: int, *, ends_work: bool
) -> None:
    now = [0.0]
    limits = RateLimits(60, megabytes_per_day=2, clock_s=lambda: now[0])
    stored, refusals = 0, list[Refusal]()
    for minute in range(24 * 60):
        now[0] = minute * 60.0
        for _ in range(100):
            try:
                limits.store("a", size, ends_work=ends_work)
            except Refusal as refusal:
                refusals.append(refusal)
                break
            stored += size

    assert stored <= most + size
    assert stored >= min(most, 24 * 60 * 100 * size) - 2 * size
    assert all("2 MB in a day" in one.detail for one in refusals)
    assert all(int(one.headers["Retry-After"]) >= 1 for one in refusals)
    limits.store("b", size)


def test_every_operation_that_writes_counts() -> None:
    counted = {one.name for one in OPERATIONS if stored_bytes(one, 0, b"{}")}
    writes = {one.name for one in OPERATIONS if one.scope is not Scope.READ}
    assert writes - counted == {"heartbeat", "settle", "thread_lease"}


def turn(number: int, size: int) -> Turn:
    call = ProposedCall(tool="process_refund", args={"x": "x" * size}, tool_call_id="c")
    ref = TurnRef(agent="support", thread=f"t{number}", message_id="m")
    return Turn(ref=ref, calls=(call,))


async def test_a_key_that_stored_enough_reads_and_reports(stack: ApiStack) -> None:
    stack.api.limits = RateLimits(10**9, megabytes_per_day=1, clock_s=lambda: 0.0)
    click, claim = await stack.harness.refund()
    await stack.harness.reviews.decide(click, Approve(), ANA)
    key = stack.key()
    async with stack.gateway(key) as gateway:
        claimed = await gateway.claim(claim)
    assert isinstance(claimed, Claimed)
    async with stack.client(key) as client:
        replies = [
            await client.post(
                "/v1/submit", content=turn(number, 60_000).model_dump_json()
            )
            for number in range(12)
        ]
        queue = await client.get("/v1/approvals")
        finish = {
            "item_id": claim.item_id,
            "fence": claimed.fence,
            "result": {"ok": True},
        }
        done = await client.post("/v1/finish", json=finish)
    async with stack.gateway() as other:
        await other.submit(turn(99, 60_000))

    codes = [one.status_code for one in replies]
    assert codes == [200] * codes.count(200) + [429] * codes.count(429)
    assert 0 < codes.count(429) < 12
    assert (queue.status_code, done.status_code, done.json()) == (200, 200, True)
