"""A program gets each decision at least once, under one id, after any failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from keyturn.gateway import webhooks as sending
from keyturn.gateway.approvals.decisions import Approve, Click, Reject
from keyturn.gateway.approvals.events import Event, EventName, SecurityKind
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.store.events.readers import drop_idle_readers, reader_states
from keyturn.gateway.store.http.webhooks import ReceiverState, receiver_state
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.webhook_signatures import verify_webhook, webhook_secret
from keyturn.gateway.webhooks import Answer, pause_after, sending_webhooks
from tests.conftest import eventually
from tests.service.harness import ANA, ServiceHarness
from tests.store_secrets import SECRETS
from tests.webhooks.receiver import HOST, Received, Receiver, receiving, trusting

CANARY = 899.25
READER = 'webhooks:"default":"app"'


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncGenerator[Receiver]:
    async with receiving(tmp_path) as found:
        with trusting(found):
            yield found


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send again soon."""
    monkeypatch.setattr(sending, "FIRST_S", 0.01)
    monkeypatch.setattr(sending, "_PAUSE_S", 0.05)


def settings_for(
    receiver: Receiver, *, targets: dict[str, Any] | None = None, **more: Any
) -> Settings:
    webhooks = {
        "targets": targets or {"app": {"url": receiver.url(), "agents": ["support"]}},
        "private_hosts": [HOST, "localhost"],
        # On a busy machine, too, messages are answered in time, and once.
        "timeout_s": 60,
        **more,
    }
    path = receiver.certificates.parent / "keyturn.yml"
    path.write_text(json.dumps({"policy": {"version": 1}, "webhooks": webhooks}))
    return Settings.load(path, {"KEYTURN_SECRET": SECRETS[0].hex()})


async def here(_: str, __: int) -> list[str]:
    return ["127.0.0.1"]


@dataclass
class Told:
    """The stored facts about the target ``app``."""

    store: Store

    async def state(self) -> ReceiverState:
        return await receiver_state(self.store, "default", "app")

    async def waiting(self) -> int:
        """Return how many events are not acknowledged."""
        found = await reader_states(
            self.store.conn, self.store.keys_of_tenant("default")
        )
        return next(one.unread for one in found if one.name.endswith(':"app"'))


@asynccontextmanager
async def telling(
    store: Store, receiver: Receiver, **given: Any
) -> AsyncGenerator[Told]:
    settings = settings_for(receiver, **given)
    async with sending_webhooks(settings, store, here):
        yield Told(store)


def arrived(receiver: Receiver, count: int = 1) -> Callable[[], Any]:
    async def have() -> bool:
        return len(receiver.requests) >= count

    return have


def idle(told: Told) -> Callable[[], Any]:
    async def nothing_waits() -> bool:
        return await told.waiting() == 0

    return nothing_waits


async def settled(receiver: Receiver, told: Told, count: int = 1) -> None:
    """Wait until so many messages arrived, and no event waits."""
    await eventually(arrived(receiver, count))
    await eventually(idle(told))


async def approve(harness: ServiceHarness, thread: str = "t1") -> Click:
    click, _ = await harness.refund(CANARY, thread=thread)
    await harness.reviews.decide(click, Approve(), ANA)
    return click


def amount_of(n: int) -> JsonObject:
    return {"amount": n}


def verified(received: Received, number: int = 1) -> dict[str, Any]:
    key = webhook_secret(SECRETS[0], "default", "app", number)
    at_s = float(received.headers["webhook-timestamp"])
    verify_webhook(received.headers, received.body, keys=[key], now_s=at_s)
    body: dict[str, Any] = json.loads(received.body)
    return body


async def test_a_decision_is_told_without_what_was_decided(
    store: Store, receiver: Receiver
) -> None:
    async with telling(store, receiver) as queue:
        click = await approve(ServiceHarness(store))
        await settled(receiver, queue)
        standing = await queue.state()

    [received] = receiver.requests
    body = verified(received)
    assert body["type"] == "approval.decided"
    assert body["data"] == {
        "agent": "support",
        "thread": "t1",
        "approval": click.approval,
    }
    assert body.keys() == {"type", "timestamp", "data"}
    assert received.headers["content-type"] == "application/json"
    # Ids and signatures contain any digits, and a signature any letters.
    del received.headers["webhook-signature"]
    told = str(received)
    words = (str(CANARY), "process_refund", "Ana", "U0ANA", "authorized")
    assert not any(one in told for one in words)
    assert standing.ok_ms is not None
    assert standing.failing_ms is None


async def test_a_tampered_message_does_not_verify(
    store: Store, receiver: Receiver
) -> None:
    async with telling(store, receiver):
        await approve(ServiceHarness(store))
        await eventually(arrived(receiver))

    [received] = receiver.requests
    for name, value in (
        ("body", received.body.replace(b"t1", b"t2")),
        ("webhook-id", "msg_" + "0" * 32),
        ("webhook-timestamp", str(int(received.headers["webhook-timestamp"]) + 1)),
    ):
        body = value if isinstance(value, bytes) else received.body
        changed = {name: value} if isinstance(value, str) else {}
        with pytest.raises(NotVerified):
            verified(Received({**received.headers, **changed}, body))


async def test_calls_of_one_card_are_one_message(
    store: Store, receiver: Receiver
) -> None:
    harness = ServiceHarness(store)
    _, verdicts = await harness.submit(
        *(("process_refund", amount_of(n)) for n in range(3))
    )
    for verdict in verdicts:
        await harness.reviews.decide(
            await harness.click(verdict), Reject(reason="no"), ANA
        )
    async with telling(store, receiver) as queue:
        await settled(receiver, queue)

    assert len({one.id for one in receiver.requests}) == 1


async def test_a_program_is_told_of_its_own_agents_alone(
    store: Store, receiver: Receiver
) -> None:
    targets = {
        "app": {"url": receiver.url(path="/app"), "agents": ["billing"]},
        "all": {"url": receiver.url(path="/all"), "agents": ["*"]},
    }
    paths: list[str] = []

    async def note(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        return web.Response()

    receiver.answer = note
    async with telling(store, receiver, targets=targets) as queue:
        await approve(ServiceHarness(store))
        await settled(receiver, queue)

    assert paths == ["/all"]


async def test_nothing_is_told_of_what_waits_runs_or_needs_nobody(
    store: Store, receiver: Receiver
) -> None:
    harness = ServiceHarness(store)
    async with telling(store, receiver) as queue:
        click, claim = await harness.refund()
        await harness.submit(("look_up_order", {"order": 1}), thread="t9")
        await harness.reviews.decide(click, Approve(), ANA)
        await eventually(arrived(receiver))
        claimed = await harness.agents.claim(claim)
        assert claimed.kind == "new"
        # The reader goes in order: behind the next decision there is nothing before it.
        other = await approve(harness, "t2")
        await settled(receiver, queue, 2)

    told = [verified(one)["data"]["approval"] for one in receiver.requests]
    assert told == [click.approval, other.approval]


async def test_a_message_is_sent_again_under_the_same_id(
    store: Store, receiver: Receiver
) -> None:
    answers = [500, 302, 429, 503, 204]

    async def in_turn(_: web.Request) -> web.StreamResponse:
        return web.Response(status=answers.pop(0), headers={"Retry-After": "0"})

    receiver.answer = in_turn
    async with telling(store, receiver) as queue:
        await approve(ServiceHarness(store))
        await settled(receiver, queue, 5)
        standing = await queue.state()

    assert answers == []
    assert len({one.id for one in receiver.requests}) == 1
    assert len({one.body for one in receiver.requests}) == 1
    for one in receiver.requests:
        verified(one)
    assert standing.failing_ms is None


async def test_a_message_that_is_given_up_is_reported(
    store: Store, receiver: Receiver
) -> None:
    async def gone(_: web.Request) -> web.StreamResponse:
        return web.Response(status=410)

    receiver.answer = gone
    async with telling(store, receiver) as queue:
        await approve(ServiceHarness(store))
        await settled(receiver, queue)
        state = await queue.state()

    assert state.error == "status 410"
    [event] = [one async for one in security_events(store, "default")]
    assert (event.reason, event.data["about"], event.data["name"]) == (
        SecurityKind.STALLED,
        "webhook",
        "app",
    )
    assert len(receiver.requests) == 1


async def test_a_message_ends_after_its_time(store: Store, receiver: Receiver) -> None:
    async def fail(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    receiver.answer = fail
    settings = settings_for(receiver)
    short = settings.webhooks.model_copy(update={"retry_for": timedelta(seconds=0.2)})
    settings = settings.model_copy(update={"webhooks": short})
    async with sending_webhooks(settings, store, here):
        await approve(ServiceHarness(store))
        await eventually(arrived(receiver))
        await eventually(idle(Told(store)))

    assert (await Told(store).state()).error == "status 500"
    assert len({one.id for one in receiver.requests}) == 1


def test_pauses_become_longer_up_to_an_hour_and_are_spread() -> None:
    failed = Answer(500, "status 500")
    longest = [pause_after(n, failed, 10**6, 1) for n in range(1, 41)]

    assert longest[:3] == [sending.FIRST_S, 2 * sending.FIRST_S, 4 * sending.FIRST_S]
    assert longest[-1] == sending.LONGEST_S
    assert pause_after(3, failed, 10**6, 0) == longest[2] / 2


def test_a_pause_is_as_long_as_is_asked_and_ends_with_the_message() -> None:
    asked = Answer(429, "status 429", pause_s=3000)

    assert pause_after(1, asked, 10**6, 0) == 3000
    assert pause_after(1, asked, 7, 0) == 7


async def test_a_slow_receiver_keeps_no_other_one_waiting(
    store: Store, receiver: Receiver, tmp_path: Path
) -> None:
    go_on = asyncio.Event()

    async def wait(_: web.Request) -> web.StreamResponse:
        await go_on.wait()
        return web.Response()

    async with receiving(tmp_path) as slow:
        slow.answer = wait
        targets = {
            "slow": {"url": slow.url(), "agents": ["*"]},
            "app": {"url": receiver.url(), "agents": ["*"]},
        }
        async with telling(store, receiver, targets=targets) as queue:
            harness = ServiceHarness(store)
            for n in range(sending.AT_ONCE + 2):
                await approve(harness, f"t{n}")
            await settled(receiver, queue, sending.AT_ONCE + 2)
            await eventually(arrived(slow))
            assert len(slow.requests) <= sending.AT_ONCE
            go_on.set()
            await eventually(arrived(slow, sending.AT_ONCE + 2))


async def test_several_gateways_send_each_message_once(
    store: Store, receiver: Receiver
) -> None:
    async with telling(store, receiver) as queue, telling(store, receiver):
        harness = ServiceHarness(store)
        for n in range(12):
            await approve(harness, f"t{n}")
        await settled(receiver, queue, 12)

    ids = [one.id for one in receiver.requests]
    assert len(ids) == len(set(ids)) == 12


async def test_what_was_read_and_not_sent_is_sent(
    store: Store, receiver: Receiver
) -> None:
    await approve(ServiceHarness(store))
    outbox = store.outbox(store.keys_of_tenant("default"), reader=READER)
    await outbox.prepare()
    assert await outbox.take("a process that died", block_ms=1)

    async with telling(store, receiver) as queue:
        await settled(receiver, queue)

    assert len(receiver.requests) == 1


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
            true.with_(approval=f"ap_default_{'a' * 32}"),
            true.with_(approval=f"ap_s9_{'a' * 32}"),
        ):
            body = forged.model_dump_json(exclude_defaults=True)
            await store.conn.command(
                "XADD", keys.outbox, "*", "e", body, "at", forged.at_ms
            )
        # Events are read in their order.
        second = await approve(harness, thread="t2")
        await settled(receiver, queue, 2)

    told = [json.loads(one.body)["data"] for one in receiver.requests]
    assert [one["approval"] for one in told] == [first.approval, second.approval]


async def test_the_reader_of_a_target_that_is_gone_is_dropped(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keyturn.yml").write_text("policy: {version: 1}")
    settings = Settings.load(
        tmp_path / "keyturn.yml", {"KEYTURN_SECRET": SECRETS[0].hex()}
    )
    outbox = store.outbox(store.keys_of_tenant("default"), reader=READER)
    await outbox.prepare()
    await outbox.take("sender", block_ms=1)
    monkeypatch.setattr(sending, "GONE_MS", -1)

    async with sending_webhooks(settings, store, here):

        async def is_dropped() -> bool:
            return not await outbox.is_known()

        await eventually(is_dropped)


async def test_the_reader_of_a_target_is_kept_however_long_it_waits(
    store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "GONE_MS", -1)
    outbox = store.outbox(store.keys_of_tenant("default"), reader=READER)
    await outbox.prepare()
    await outbox.take("sender", block_ms=1)
    looked, dropped = asyncio.Event(), list[str]()

    async def noted(*given: Any, **named: Any) -> None:
        dropped.extend(await drop_idle_readers(*given, **named))
        looked.set()

    monkeypatch.setattr("keyturn.gateway.webhooks.drop_idle_readers", noted)
    async with telling(store, receiver):
        await looked.wait()

    assert dropped == []
