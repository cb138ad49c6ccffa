"""What is queued for a program is ours, taken by one process, and bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.service.harness import ServiceHarness
from tests.store_secrets import SECRETS
from tests.topologies import Cluster
from tests.webhooks.receiver import Receiver, receiving
from tests.webhooks.test_sending import approve, arrived, idle, telling
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.security import SecurityKind
from twokey.gateway.protocol.webhooks import DECIDED, News
from twokey.gateway.store.store import Store
from twokey.gateway.store.webhooks import Delivery, Outcome, WebhookQueue


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncGenerator[Receiver]:
    async with receiving(tmp_path) as found:
        yield found


def message(id_: str) -> Delivery:
    news = News(agent="support", thread="t1", approval="ap")
    return Delivery(id=id_, kind=DECIDED, news=news, at_ms=5)


async def test_a_message_is_taken_by_one_process_at_a_time(store: Store) -> None:
    queue = WebhookQueue(store, tenant="default", target="app")
    for n in range(3):
        assert await queue.put(message(f"msg_{n}")) == "queued"
    assert await queue.put(message("msg_0")) == "known"

    first = await queue.take(2, lease_ms=60_000)
    second = await queue.take(9, lease_ms=60_000)
    third = await queue.take(9, lease_ms=60_000)

    assert len(first.taken) == 2
    assert len(second.taken) == 1
    assert third.taken == ()
    assert third.next_ms


async def test_the_end_of_a_message_is_recorded_once(store: Store) -> None:
    queue = WebhookQueue(store, tenant="default", target="app")
    await queue.put(message("msg_1"))
    [slow] = (await queue.take(1, lease_ms=0)).taken
    [fast] = (await queue.take(1, lease_ms=60_000)).taken

    assert await queue.end(fast, Outcome.LATER, fast.delivery.with_(attempts=1))
    assert not await queue.end(slow, Outcome.SENT, slow.delivery)
    [again] = (await queue.take(1, lease_ms=60_000)).taken
    assert again.delivery.attempts == 1


@pytest.mark.parametrize("of", ["another id", "another target", "json", "nothing"])
async def test_what_somebody_else_queued_is_never_signed(
    store: Store, receiver: Receiver, of: str
) -> None:
    queue = WebhookQueue(store, tenant="default", target="app")
    other = WebhookQueue(store, tenant="default", target="other")
    await queue.put(message("msg_1"))
    await other.put(message("msg_1"))
    keys = store.keys_of_tenant("default")
    all_, others = (keys.webhook("default", one, "all") for one in ("app", "other"))
    ours = await store.conn.command("HGET", all_, "msg_1")
    theirs = await store.conn.command("HGET", others, "msg_1")
    assert isinstance(ours, bytes)
    assert isinstance(theirs, bytes)
    id_, body = {
        "another id": ("msg_2", ours),
        "another target": ("msg_1", theirs),
        "json": ("msg_1", message("msg_1").model_dump_json().encode()),
        "nothing": ("msg_1", b""),
    }[of]
    await store.conn.transaction(
        ["DEL", keys.webhook("default", "app", "due")],
        ["DEL", keys.webhook("default", "app", "all")],
    )
    await store.conn.transaction(
        ["HSET", keys.webhook("default", "app", "all"), id_, body],
        ["ZADD", keys.webhook("default", "app", "due"), 1, id_],
        ["PEXPIRE", keys.webhook("default", "app", "all"), 60_000],
        ["PEXPIRE", keys.webhook("default", "app", "due"), 60_000],
    )

    async with telling(store, receiver):
        await eventually(idle(queue))

    assert receiver.requests == []
    assert store.security.counts[SecurityKind.SEAL_WRONG] == 1


async def test_no_event_that_somebody_wrote_is_signed(
    store: Store, receiver: Receiver
) -> None:
    harness = ServiceHarness(store)
    keys = store.keys_of_tenant("default")
    async with telling(store, receiver) as queue:
        first = await approve(harness)
        await eventually(arrived(receiver))
        true = Event(
            name=EventName.ITEM_REJECTED,
            tenant="default",
            agent="support",
            thread="t1",
            approval=first.approval,
            item=f"{first.approval}.0",
        )
        for forged in (
            true.with_(thread="of somebody"),
            true.with_(agent="other"),
            true.with_(approval="visit evil.test", item="x"),
            true.with_(approval=f"ap_s0_{'a' * 32}"),
            true.with_(approval=f"ap_s9_{'a' * 32}"),
        ):
            body = forged.model_dump_json(exclude_defaults=True)
            await store.conn.command(
                "XADD", keys.outbox, "*", "e", body, "at", forged.at_ms
            )
        # Events are read in their order.
        second = await approve(harness, thread="t2")
        await eventually(arrived(receiver, 2))
        await eventually(idle(queue))

    told = [json.loads(one.body)["data"] for one in receiver.requests]
    assert [one["approval"] for one in told] == [first.approval, second.approval]


@pytest.mark.parametrize("at", ["9" * 5000, "9" * 15, "\u00b2", "-1", "soon"])
async def test_a_time_that_is_none_is_not_read(store: Store, at: str) -> None:
    queue = WebhookQueue(store, tenant="default", target="app")
    name = store.keys_of_tenant("default").webhook("default", "app", "state")
    await store.conn.command("HSET", name, "ok", at, "failing", at)
    await store.conn.command("PEXPIRE", name, 60_000)

    standing = await queue.standing()

    assert (standing.ok_ms, standing.failing_ms) == (None, None)


async def test_a_queue_has_a_bound(
    store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twokey.gateway.store.webhooks.MOST_WAITING", 2)
    monkeypatch.setattr("twokey.gateway.store.webhooks.MOST_DEAD", 2)
    queue = WebhookQueue(store, tenant="default", target="app")
    put = [await queue.put(message(f"msg_{n}")) for n in range(3)]
    for n in range(4):
        taken = (await queue.take(9, lease_ms=0)).taken
        for one in taken:
            await queue.end(one, Outcome.DEAD, one.delivery)
        await queue.put(message(f"msg_{n + 10}"))

    assert put == ["queued", "queued", "full"]
    dead = [one.delivery.id async for one in queue.dead()]
    assert len(dead) == 2
    assert dead[0] == "msg_12"
    keys = store.keys_of_tenant("default")
    kept = await store.conn.command("HLEN", keys.webhook("default", "app", "all"))
    assert kept == 3


async def test_a_message_that_was_given_up_can_be_sent_again(
    store: Store, receiver: Receiver
) -> None:
    queue = WebhookQueue(store, tenant="default", target="app")
    await queue.put(message("msg_1"))
    [taken] = (await queue.take(1, lease_ms=60_000)).taken
    await queue.end(taken, Outcome.DEAD, taken.delivery.with_(attempts=9))
    [dead] = [one async for one in queue.dead()]
    again = dead.delivery.with_(attempts=0, ends_ms=0)

    assert await queue.put(again, seen=b"another") == "known"
    assert await queue.put(again, seen=dead.stored) == "queued"
    assert await queue.put(again, seen=dead.stored) == "known"
    async with telling(store, receiver):
        await eventually(arrived(receiver))
        await eventually(idle(queue))

    assert [one.id for one in receiver.requests] == ["msg_1"]
    assert (await queue.standing()).dead == 0


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_a_queue_is_on_one_node_of_a_cluster(cluster: Cluster) -> None:
    store = Store(cluster.url, secrets=SECRETS, shards=8)
    queues = [WebhookQueue(store, tenant=tenant, target="app") for tenant in "abcdefgh"]
    for queue in queues:
        await queue.put(message("msg_1"))
        [taken] = (await queue.take(9, lease_ms=60_000)).taken
        assert await queue.now_ms()
        await queue.end(taken, Outcome.DEAD, taken.delivery)
        [dead] = [one async for one in queue.dead()]
        assert await queue.put(dead.delivery, seen=dead.stored) == "queued"
        assert (await queue.standing()).waiting == 1
    await store.close()
