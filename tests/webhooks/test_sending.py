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
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.store.events.outbox import drop_idle_readers, reader_states
from keyturn.gateway.store.http.webhooks import ReceiverState, receiver_state
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.webhook_signatures import verify_webhook, webhook_secret
from keyturn.gateway.webhooks import Answer, pause_after, sending_webhooks
from tests.conftest import eventually
from tests.service.harness import ANA, ServiceHarness
from tests.store_secrets import SECRETS
from tests.webhooks.receiver import (
    HOST,
    Names,
    Received,
    Receiver,
    answering,
    receiving,
    waiting_for,
)

CANARY = 899.25
READER = 'webhooks:"default":"app"'


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


@dataclass
class App:
    """A program, the gateway that tells it of decisions, and what is stored about it.

    Attributes:
        receiver: the program.
    """

    store: Store
    receiver: Receiver

    def __post_init__(self) -> None:
        self.harness = ServiceHarness(self.store)
        keys = self.store.keys_of_tenant("default")
        self.outbox = self.store.outbox(keys, reader=READER)

    @property
    def requests(self) -> list[Received]:
        """Return what arrived."""
        return self.receiver.requests

    @asynccontextmanager
    async def telling(self, **given: Any) -> AsyncGenerator[None]:
        """Send in the block."""
        settings = settings_for(self.receiver, **given)
        async with sending_webhooks(settings, self.store, Names(["127.0.0.1"])):
            yield

    async def state(self) -> ReceiverState:
        return await receiver_state(self.store, "default", "app")

    async def arrived(self, count: int = 1) -> None:
        """Wait until so many messages arrived."""
        await eventually(arrived(self.receiver, count))

    async def settled(self, count: int = 1) -> None:
        """Wait until so many messages arrived, and no event waits."""
        keys = self.store.keys_of_tenant("default")

        async def nothing_waits() -> bool:
            found = await reader_states(self.store.conn, keys)
            return not any(one.unread for one in found if one.name.endswith(':"app"'))

        await self.arrived(count)
        await eventually(nothing_waits)

    async def approve(self, thread: str = "t1") -> Click:
        click, _ = await self.harness.refund(CANARY, thread=thread)
        await self.harness.reviews.decide(click, Approve(), ANA)
        return click

    async def prepare(self) -> None:
        """Let a process that died have begun to read."""
        await self.outbox.prepare()
        await self.outbox.take("a process that died", block_ms=1)


@pytest.fixture
def app(store: Store, receiver: Receiver) -> App:
    return App(store, receiver)


def arrived(receiver: Receiver, count: int = 1) -> Callable[[], Any]:
    async def have() -> bool:
        return len(receiver.requests) >= count

    return have


def amount_of(n: int) -> JsonObject:
    return {"amount": n}


def verified(received: Received, number: int = 1) -> dict[str, Any]:
    key = webhook_secret(SECRETS[0], "default", "app", number)
    at_s = float(received.headers["webhook-timestamp"])
    verify_webhook(received.headers, received.body, keys=[key], now_s=at_s)
    body: dict[str, Any] = json.loads(received.body)
    return body


async def test_a_decision_is_told_without_what_was_decided(app: App) -> None:
    async with app.telling():
        click = await app.approve()
        await app.settled()
        standing = await app.state()

    [received] = app.requests
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


async def test_a_tampered_message_does_not_verify(app: App) -> None:
    async with app.telling():
        await app.approve()
        await app.arrived()

    [received] = app.requests
    for name, value in (
        ("body", received.body.replace(b"t1", b"t2")),
        ("webhook-id", "msg_" + "0" * 32),
        ("webhook-timestamp", str(int(received.headers["webhook-timestamp"]) + 1)),
    ):
        body = value if isinstance(value, bytes) else received.body
        changed = {name: value} if isinstance(value, str) else {}
        with pytest.raises(NotVerified):
            verified(Received({**received.headers, **changed}, body))


async def test_calls_of_one_card_are_one_message(app: App) -> None:
    _, verdicts = await app.harness.submit(
        *(("process_refund", amount_of(n)) for n in range(3))
    )
    for verdict in verdicts:
        await app.harness.reviews.decide(
            await app.harness.click(verdict), Reject(reason="no"), ANA
        )
    async with app.telling():
        await app.settled()

    assert len({one.id for one in app.requests}) == 1


async def test_a_program_is_told_of_its_own_agents_alone(app: App) -> None:
    targets = {
        "app": {"url": app.receiver.url(path="/app"), "agents": ["billing"]},
        "all": {"url": app.receiver.url(path="/all"), "agents": ["*"]},
    }
    paths: list[str] = []

    async def note(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        return web.Response()

    app.receiver.answer = note
    async with app.telling(targets=targets):
        await app.approve()
        await app.settled()

    assert paths == ["/all"]


async def test_nothing_is_told_of_what_waits_runs_or_needs_nobody(app: App) -> None:
    async with app.telling():
        click, claim = await app.harness.refund()
        await app.harness.submit(("look_up_order", {"order": 1}), thread="t9")
        await app.harness.reviews.decide(click, Approve(), ANA)
        await app.arrived()
        claimed = await app.harness.agents.claim(claim)
        assert claimed.kind == "new"
        # The reader goes in order: behind the next decision there is nothing before it.
        other = await app.approve("t2")
        await app.settled(2)

    told = [verified(one)["data"]["approval"] for one in app.requests]
    assert told == [click.approval, other.approval]


async def test_a_message_is_sent_again_under_the_same_id(app: App) -> None:
    app.receiver.answer = answering(500, 302, 429, 503, 204, Retry_After="0")
    async with app.telling():
        await app.approve()
        await app.settled(5)
        standing = await app.state()

    assert len(app.requests) == 5
    assert len({one.id for one in app.requests}) == 1
    assert len({one.body for one in app.requests}) == 1
    for one in app.requests:
        verified(one)
    assert standing.failing_ms is None


async def test_a_message_that_is_given_up_is_reported(app: App) -> None:
    app.receiver.answer = answering(410)
    async with app.telling():
        await app.approve()
        await app.settled()
        state = await app.state()

    assert state.error == "status 410"
    [event] = [one async for one in security_events(app.store, "default")]
    assert (event.reason, event.data["about"], event.data["name"]) == (
        SecurityKind.STALLED,
        "webhook",
        "app",
    )
    assert len(app.requests) == 1


async def test_a_message_ends_after_its_time(app: App) -> None:
    app.receiver.answer = answering(500)
    settings = settings_for(app.receiver)
    short = settings.webhooks.model_copy(update={"retry_for": timedelta(seconds=0.2)})
    settings = settings.model_copy(update={"webhooks": short})
    async with sending_webhooks(settings, app.store, Names(["127.0.0.1"])):
        await app.approve()
        await app.settled()

    assert (await app.state()).error == "status 500"
    assert len({one.id for one in app.requests}) == 1


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


async def test_a_slow_receiver_delays_no_other(app: App, tmp_path: Path) -> None:
    go_on = asyncio.Event()
    async with receiving(tmp_path) as slow:
        slow.answer = waiting_for(go_on)
        targets = {
            "slow": {"url": slow.url(), "agents": ["*"]},
            "app": {"url": app.receiver.url(), "agents": ["*"]},
        }
        async with app.telling(targets=targets):
            for n in range(sending.AT_ONCE + 2):
                await app.approve(f"t{n}")
            await app.settled(sending.AT_ONCE + 2)
            await eventually(arrived(slow))
            assert len(slow.requests) <= sending.AT_ONCE
            go_on.set()
            await eventually(arrived(slow, sending.AT_ONCE + 2))


async def test_several_gateways_send_each_message_once(app: App) -> None:
    async with app.telling(), app.telling():
        for n in range(12):
            await app.approve(f"t{n}")
        await app.settled(12)

    ids = [one.id for one in app.requests]
    assert len(ids) == len(set(ids)) == 12


async def test_what_was_read_and_not_sent_is_sent(app: App) -> None:
    await app.approve()
    await app.prepare()

    async with app.telling():
        await app.settled()

    assert len(app.requests) == 1


async def test_no_event_that_somebody_wrote_is_signed(app: App) -> None:
    keys = app.store.keys_of_tenant("default")
    async with app.telling():
        first = await app.approve()
        await app.arrived()
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
            await app.store.conn.command(
                "XADD", keys.outbox, "*", "e", body, "at", forged.at_ms
            )
        # Events are read in their order.
        second = await app.approve(thread="t2")
        await app.settled(2)

    told = [json.loads(one.body)["data"] for one in app.requests]
    assert [one["approval"] for one in told] == [first.approval, second.approval]


async def test_the_reader_of_a_target_that_is_gone_is_dropped(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(app.receiver)
    none = settings.webhooks.model_copy(update={"targets": {}})
    settings = settings.model_copy(update={"webhooks": none})
    await app.prepare()
    monkeypatch.setattr(sending, "GONE_MS", -1)

    async with sending_webhooks(settings, app.store, Names(["127.0.0.1"])):

        async def is_dropped() -> bool:
            return not await app.outbox.is_known()

        await eventually(is_dropped)


async def test_the_reader_of_a_target_is_kept_however_long_it_waits(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "GONE_MS", -1)
    await app.prepare()
    looked, dropped = asyncio.Event(), list[str]()

    async def noted(*given: Any, **named: Any) -> None:
        dropped.extend(await drop_idle_readers(*given, **named))
        looked.set()

    monkeypatch.setattr("keyturn.gateway.webhooks.drop_idle_readers", noted)
    async with app.telling():
        await looked.wait()

    assert dropped == []


async def test_an_embedded_gateway_sends_webhooks(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = list[str]()

    @asynccontextmanager
    async def sending(settings: Settings, store: Store) -> AsyncGenerator[None]:
        steps.append(f"begun for {settings.tenant}")
        # The store is open as long as something is sent.
        await store.conn.command("PING")
        yield
        await store.conn.command("PING")
        steps.append("ended")

    monkeypatch.setattr("keyturn.gateway.webhooks.sending_webhooks", sending)
    file = tmp_path / "keyturn.yml"
    file.write_text(f"policy: {{version: 1}}\nredis_url: {empty_url}\n")
    monkeypatch.chdir(tmp_path)
    settings = Settings.load(file, {})
    async with Keyturn(settings, insecure_dev=True):
        assert steps == ["begun for default"]

    assert steps == ["begun for default", "ended"]
