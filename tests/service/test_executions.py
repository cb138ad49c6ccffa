"""One authorization executes at most once, and doubt is visible."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
)
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.protocol.run_context import one_write
from keyturn.gateway.protocol.wire import Busy, Claimed, Done, InDoubt
from tests.service.harness import ServiceHarness, claim_of

RAN = Result(ok=True, summary="refunded", payload="{}")


async def test_sixteen_executors_get_one_claim(harness: ServiceHarness) -> None:
    claim = await harness.approved()

    replies = await asyncio.gather(
        *(harness.agents.claim(claim.with_(owner=f"w{n}")) for n in range(16))
    )

    assert sum(isinstance(reply, Claimed) for reply in replies) == 1
    assert sum(isinstance(reply, Busy) for reply in replies) == 15


async def test_an_attempt_that_asks_again_after_a_lost_answer_keeps_its_claim(
    harness: ServiceHarness,
) -> None:
    claim = await harness.approved()

    with one_write():
        first, again = [await harness.agents.claim(claim) for _ in range(2)]

    assert isinstance(first, Claimed)
    assert first == again


@pytest.mark.parametrize("owner", ["worker-1", "worker-2", "worker-1 worker-1"])
async def test_another_request_of_any_owner_waits_for_the_one_that_runs(
    harness: ServiceHarness, owner: str
) -> None:
    """A state that is replayed names its old owner, and has no effect again."""
    claim = await harness.approved()
    first = await harness.granted(claim)

    replays = [await harness.agents.claim(claim.with_(owner=owner)) for _ in range(3)]
    await harness.agents.finish(claim.item_id, first.fence, RAN)
    after = await harness.agents.claim(claim.with_(owner=owner))

    assert [type(one) for one in replays] == [Busy] * 3
    assert after == Done(result=RAN)


@pytest.mark.parametrize("ok", [True, False])
async def test_another_result_of_the_same_attempt_is_not_acknowledged(
    harness: ServiceHarness, *, ok: bool
) -> None:
    claim = await harness.approved()
    granted = await harness.granted(claim)
    first = Result(ok=ok, summary="paid 5", payload="5")
    reports = [first, first, first.with_(payload="6"), first.with_(ok=not ok)]

    kept = [
        await harness.agents.finish(claim.item_id, granted.fence, one)
        for one in reports
    ]

    assert kept == [True, True, False, False]
    assert (await harness.item(claim.item_id)).result == first


async def test_a_dead_owner_leaves_a_doubt_and_nothing_runs_again(
    harness: ServiceHarness,
) -> None:
    claim = await harness.approved()
    await harness.agents.claim(claim)
    await harness.owner_dies(claim.item_id)

    assert isinstance(await harness.agents.claim(claim.with_(owner="w2")), InDoubt)
    assert (await harness.item(claim.item_id)).state is ItemState.IN_DOUBT


async def test_an_idempotent_tool_is_retried_with_the_same_key(
    harness: ServiceHarness,
) -> None:
    ref, verdicts = await harness.submit(("send_email", {"to": "a@example.org"}))
    claim = claim_of(ref, verdicts[0])
    await harness.decide(verdicts[0], Approve())
    first = await harness.agents.claim(claim)
    await harness.owner_dies(claim.item_id)

    second = await harness.agents.claim(claim.with_(owner="w2"))

    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert first.idempotency_key == second.idempotency_key
    assert second.fence > first.fence
    assert not await harness.agents.finish(claim.item_id, first.fence, RAN)


async def test_a_heartbeat_keeps_a_claim_and_a_lost_one_says_so(
    harness: ServiceHarness,
) -> None:
    claim = await harness.approved()
    granted = await harness.granted(claim)

    await harness.owner_dies(claim.item_id)
    kept = await harness.agents.heartbeat(claim.item_id, granted.fence)
    await harness.sweeper.sweep()
    state = (await harness.item(claim.item_id)).state
    lost = await harness.agents.heartbeat(claim.item_id, granted.fence + 1)

    assert kept
    assert state is ItemState.EXECUTING
    assert not lost


async def test_an_authorization_does_not_lapse_while_something_inside_asks(
    harness: ServiceHarness,
) -> None:
    claim = await harness.approved()
    first = await harness.granted(claim)
    await harness.lapsed(claim.item_id)

    await harness.agents.release(claim.item_id, first.fence)
    await harness.sweeper.sweep()

    assert (await harness.item(claim.item_id)).state is ItemState.AUTHORIZED
    await harness.granted(claim.with_(owner="worker-2"))


async def test_an_attempt_that_did_not_begin_makes_no_authorization_longer(
    harness: ServiceHarness,
) -> None:
    """Its process got a stop signal between the claim and the tool."""
    claim = await harness.approved()
    before = (await harness.item(claim.item_id)).lapses_at_ms
    granted = await harness.granted(claim)

    await harness.agents.release(claim.item_id, granted.fence, has_begun=False)

    assert (await harness.item(claim.item_id)).lapses_at_ms == before
    await harness.lapsed(claim.item_id)
    await harness.sweeper.sweep()
    assert (await harness.item(claim.item_id)).state is ItemState.LAPSED
