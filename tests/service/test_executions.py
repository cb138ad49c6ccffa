"""One authorization executes at most once, and doubt is visible."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.desk import ANA, EVE, Desk, claim_of
from twokey.gateway.approvals.decisions import Approve, Edit, Reconcile, Reject, Settled
from twokey.gateway.errors import UnreadableRecord
from twokey.gateway.protocol.digest import action_args, action_hash
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.verbs import Finding
from twokey.gateway.protocol.wire import Busy, Claimed, Done, InDoubt, Refused
from twokey.gateway.store.store import Store

RAN = Result(ok=True, summary="refunded", payload="{}")


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


async def test_nothing_executes_before_it_is_authorized(desk: Desk) -> None:
    _, claim = await desk.refund()

    reply = await desk.agents.claim(claim)

    assert isinstance(reply, Refused)
    assert reply.state is ItemState.PENDING


async def test_a_rejected_call_never_executes(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Reject(reason="no"), ANA)

    assert isinstance(await desk.agents.claim(claim), Refused)


async def test_what_was_edited_is_what_executes(desk: Desk) -> None:
    click, claim = await desk.refund(899)
    await desk.reviews.decide(click, Edit(args={"amount": 449.5}, reason="half"), ANA)

    reply = await desk.agents.claim(claim)

    assert isinstance(reply, Claimed)
    assert action_args(reply.action) == {"amount": 449.5}
    assert action_hash(reply.action) == reply.action_hash
    assert reply.edit
    assert reply.edit.reason == "half"


async def test_sixteen_executors_get_one_claim(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)

    replies = await asyncio.gather(
        *(desk.agents.claim(claim.with_(owner=f"w{n}")) for n in range(16))
    )

    assert sum(isinstance(reply, Claimed) for reply in replies) == 1
    assert sum(isinstance(reply, Busy) for reply in replies) == 15


async def test_an_attempt_that_asks_again_after_a_lost_answer_keeps_its_claim(
    desk: Desk,
) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)

    assert await desk.agents.claim(claim) == await desk.agents.claim(claim)


async def test_a_finished_call_gives_its_stored_result(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    granted = await desk.agents.claim(claim)
    assert isinstance(granted, Claimed)

    assert await desk.agents.finish(claim.item_id, granted.fence, RAN)
    again = await desk.agents.claim(claim.with_(owner="w2"))

    assert again == Done(result=RAN)
    assert (await desk.item(claim.item_id)).state is ItemState.EXECUTED


async def test_a_failed_call_is_failed_and_does_not_run_again(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    granted = await desk.agents.claim(claim)
    assert isinstance(granted, Claimed)

    await desk.agents.finish(claim.item_id, granted.fence, Result(ok=False))

    assert (await desk.item(claim.item_id)).state is ItemState.FAILED
    assert isinstance(await desk.agents.claim(claim.with_(owner="w2")), Done)


@pytest.mark.parametrize("field", ["tool", "tool_call_id", "thread", "ns", "agent",
                                   "message_id"])  # fmt: skip
async def test_a_claim_for_another_call_is_refused(desk: Desk, field: str) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    if field in {"tool", "tool_call_id"}:
        forged = claim.with_(**{field: "other"})
    else:
        forged = claim.with_(ref=claim.ref.with_(**{field: "other"}))

    assert isinstance(await desk.agents.claim(forged), Refused)


async def test_an_item_of_another_tenant_is_refused(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    stranger = type(desk.agents)(desk.store, lambda: desk.policy, tenant="other")

    assert isinstance(await stranger.claim(claim), Refused)


async def test_a_dead_owner_leaves_a_doubt_and_nothing_runs_again(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    await desk.agents.claim(claim)
    await desk.owner_dies(claim.item_id)

    assert isinstance(await desk.agents.claim(claim.with_(owner="w2")), InDoubt)
    assert (await desk.item(claim.item_id)).state is ItemState.IN_DOUBT


async def test_the_sweep_shows_a_doubt_that_nobody_asks_about(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    await desk.agents.claim(claim)
    await desk.owner_dies(claim.item_id)

    await desk.sweeper.sweep()

    assert (await desk.item(claim.item_id)).state is ItemState.IN_DOUBT


async def test_an_idempotent_tool_is_retried_with_the_same_key(desk: Desk) -> None:
    ref, verdicts = await desk.submit(("send_email", {"to": "a@example.org"}))
    claim = claim_of(ref, verdicts[0])
    await desk.reviews.decide(await desk.click(verdicts[0]), Approve(), ANA)
    first = await desk.agents.claim(claim)
    await desk.owner_dies(claim.item_id)

    second = await desk.agents.claim(claim.with_(owner="w2"))

    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert first.idempotency_key == second.idempotency_key
    assert second.fence > first.fence
    assert not await desk.agents.finish(claim.item_id, first.fence, RAN)


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (Finding.EXECUTED, ItemState.EXECUTED),
        (Finding.RERUN, ItemState.AUTHORIZED),
        (Finding.SKIP, ItemState.FAILED),
    ],
)
async def test_a_person_settles_a_doubt(
    desk: Desk, finding: Finding, state: ItemState
) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    await desk.agents.claim(claim)
    await desk.owner_dies(claim.item_id)
    await desk.sweeper.sweep()

    outsider = await desk.reviews.decide(click, Reconcile(finding=finding), EVE)
    settled = await desk.reviews.decide(click, Reconcile(finding=finding), ANA)

    assert outsider.kind == "forbidden"
    assert isinstance(settled, Settled)
    assert (await desk.item(claim.item_id)).state is state


async def test_an_owner_that_was_thought_dead_may_still_tell_the_truth(
    desk: Desk,
) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    granted = await desk.agents.claim(claim)
    assert isinstance(granted, Claimed)
    await desk.owner_dies(claim.item_id)
    await desk.sweeper.sweep()

    assert await desk.agents.finish(claim.item_id, granted.fence, RAN)
    assert (await desk.item(claim.item_id)).state is ItemState.EXECUTED


async def test_a_heartbeat_keeps_a_claim_and_a_lost_one_says_so(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    granted = await desk.agents.claim(claim)
    assert isinstance(granted, Claimed)

    await desk.owner_dies(claim.item_id)
    kept = await desk.agents.heartbeat(claim.item_id, granted.fence)
    await desk.sweeper.sweep()
    state = (await desk.item(claim.item_id)).state
    lost = await desk.agents.heartbeat(claim.item_id, granted.fence + 1)

    assert kept
    assert state is ItemState.EXECUTING
    assert not lost


async def test_a_claim_given_back_can_be_taken_again(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    granted = await desk.agents.claim(claim)
    assert isinstance(granted, Claimed)

    await desk.agents.release(claim.item_id, granted.fence)

    assert isinstance(await desk.agents.claim(claim.with_(owner="w2")), Claimed)


async def test_an_authorization_does_not_lapse_while_something_inside_asks(
    desk: Desk,
) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    first = await desk.agents.claim(claim)
    assert isinstance(first, Claimed)
    await desk.lapsed(claim.item_id)

    await desk.agents.release(claim.item_id, first.fence)
    await desk.sweeper.sweep()

    assert (await desk.item(claim.item_id)).state is ItemState.AUTHORIZED
    again = await desk.agents.claim(claim.with_(owner="worker-2"))
    assert isinstance(again, Claimed)


async def test_an_authorization_that_nobody_uses_lapses(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    keys = desk.store.keys_of_tenant("default")
    await desk.store.conn.together(
        ["HSET", keys.head(click.approval), "0:l", 1],
        ["ZADD", keys.expiry, 1, click.approval],
    )

    refused = await desk.agents.claim(claim)
    await desk.sweeper.sweep()

    assert isinstance(refused, Refused)
    assert (await desk.item(claim.item_id)).state is ItemState.LAPSED


async def test_a_record_changed_behind_our_back_never_executes(desk: Desk) -> None:
    click, claim = await desk.refund(1)
    await desk.reviews.decide(click, Approve(), ANA)
    keys = desk.store.keys_of_tenant("default")
    head, blobs = keys.head(click.approval), keys.blobs(click.approval)
    detail = await desk.store.conn.command("HGET", blobs, "0:d")
    assert isinstance(detail, bytes)

    swapped = detail.replace(b'\\"amount\\":1', b'\\"amount\\":9')
    assert swapped != detail
    await desk.store.conn.command("HSET", blobs, "0:d", swapped)

    assert isinstance(await desk.agents.claim(claim), Refused)
    assert await desk.store.conn.command("HGET", head, "0:s") == b"authorized"


async def test_a_waiting_call_changed_behind_our_back_can_no_longer_be_decided(
    desk: Desk,
) -> None:
    click, claim = await desk.refund(1)
    blobs = desk.store.keys_of_tenant("default").blobs(click.approval)
    detail = await desk.store.conn.command("HGET", blobs, "0:d")
    assert isinstance(detail, bytes)
    swapped = detail.replace(b'\\"amount\\":1', b'\\"amount\\":9')
    await desk.store.conn.command("HSET", blobs, "0:d", swapped)

    with pytest.raises(UnreadableRecord):
        await desk.reviews.decide(click, Approve(), ANA)

    head = desk.store.keys_of_tenant("default").head(click.approval)
    assert await desk.store.conn.command("HGET", head, "0:s") == b"pending"
    assert isinstance(await desk.agents.claim(claim), Refused)
