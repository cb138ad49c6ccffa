"""A program is told of each decision at least once, under one id, whatever happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.api.gateway_process import gateway_process
from tests.conftest import eventually
from tests.service.harness import ANA, ServiceHarness
from tests.store_secrets import SECRETS
from tests.webhooks.receiver import HOST, Received, Receiver, receiving
from twokey.gateway.approvals.decisions import Approve, Click, Reject
from twokey.gateway.approvals.security import SecurityKind
from twokey.gateway.config import Settings
from twokey.gateway.errors import NotVerified, SettingsError
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.service.security_events import security_events
from twokey.gateway.store.store import Store
from twokey.gateway.store.webhooks import WebhookQueue
from twokey.gateway.trust.webhook_secrets import webhook_secret
from twokey.gateway.trust.webhook_signatures import verify_webhook
from twokey.gateway.webhooks import attempts, sending
from twokey.gateway.webhooks.sending import sending_webhooks

CANARY = 899.25


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncGenerator[Receiver]:
    async with receiving(tmp_path) as found:
        yield found


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send again soon."""
    monkeypatch.setattr(attempts, "FIRST_MS", 10)


def settings_for(
    receiver: Receiver, *, targets: dict[str, Any] | None = None, **more: Any
) -> Settings:
    webhooks = {
        "targets": targets or {"app": {"url": receiver.url(), "agents": ["support"]}},
        "private_hosts": [HOST, "localhost"],
        "certificates": str(receiver.certificates),
        # On a busy machine, too, what is sent is answered in time, and once.
        "timeout_s": 60,
        **more,
    }
    path = receiver.certificates.parent / "twokey.yml"
    path.write_text(json.dumps({"policy": {"version": 1}, "webhooks": webhooks}))
    return Settings.load(path, {"TWOKEY_SECRET": SECRETS[0].hex()})


async def here(_: str, __: int) -> list[str]:
    return ["127.0.0.1"]


@asynccontextmanager
async def telling(
    store: Store, receiver: Receiver, **given: Any
) -> AsyncGenerator[WebhookQueue]:
    settings = settings_for(receiver, **given)
    async with sending_webhooks(settings, store, here):
        yield WebhookQueue(store, tenant="default", target="app")


def arrived(receiver: Receiver, count: int = 1) -> Callable[[], Any]:
    async def have() -> bool:
        return len(receiver.requests) >= count

    return have


def idle(queue: WebhookQueue) -> Callable[[], Any]:
    async def nothing_waits() -> bool:
        return (await queue.standing()).waiting == 0

    return nothing_waits


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
        await eventually(arrived(receiver))
        await eventually(idle(queue))
        standing = await queue.standing()

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
    # Ids and signatures hold any digits, and a signature any letters.
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
        await eventually(arrived(receiver))
        await eventually(idle(queue))

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
        await eventually(arrived(receiver))
        await eventually(idle(queue))

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
        await eventually(arrived(receiver, 2))
        await eventually(idle(queue))

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
        await eventually(arrived(receiver, 5))
        await eventually(idle(queue))
        standing = await queue.standing()

    assert answers == []
    assert len({one.id for one in receiver.requests}) == 1
    assert len({one.body for one in receiver.requests}) == 1
    for one in receiver.requests:
        verified(one)
    assert standing.failing_ms is None


async def test_a_receiver_that_is_away_gets_its_message_later(
    store: Store, receiver: Receiver
) -> None:
    # Nobody listens there, on Linux; elsewhere there is no such address.
    at = ["127.0.0.2"]

    async def where(_: str, __: int) -> list[str]:
        return at

    queue = WebhookQueue(store, tenant="default", target="app")
    async with sending_webhooks(settings_for(receiver), store, where):
        click = await approve(ServiceHarness(store))

        async def is_failing() -> bool:
            return (await queue.standing()).failing_ms is not None

        await eventually(is_failing)
        at[0] = "127.0.0.1"
        await eventually(arrived(receiver))
        await eventually(idle(queue))

    assert verified(receiver.requests[0])["data"]["approval"] == click.approval


async def test_a_message_that_is_given_up_is_reported_and_kept(
    store: Store, receiver: Receiver
) -> None:
    async def gone(_: web.Request) -> web.StreamResponse:
        return web.Response(status=410)

    receiver.answer = gone
    async with telling(store, receiver) as queue:
        await approve(ServiceHarness(store))
        await eventually(arrived(receiver))

        async def is_dead() -> bool:
            return (await queue.standing()).dead == 1

        await eventually(is_dead)
        [dead] = [one async for one in queue.dead()]

        async def is_reported() -> bool:
            return bool([one async for one in security_events(store, "default")])

        await eventually(is_reported)

    assert dead.delivery.error == "status 410"
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
    queue = WebhookQueue(store, tenant="default", target="app")
    async with sending_webhooks(settings, store, here):
        await approve(ServiceHarness(store))

        async def is_dead() -> bool:
            return (await queue.standing()).dead == 1

        await eventually(is_dead)

    standing = await queue.standing()
    assert (standing.waiting, standing.error) == (0, "status 500")
    assert len({one.id for one in receiver.requests}) == 1


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
            await eventually(arrived(receiver, sending.AT_ONCE + 2))
            await eventually(idle(queue))
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
        await eventually(arrived(receiver, 12))
        await eventually(idle(queue))

    ids = [one.id for one in receiver.requests]
    assert len(ids) == len(set(ids)) == 12


@pytest.mark.parametrize("was_queued", [False, True])
async def test_what_was_read_and_not_queued_is_read_again(
    store: Store,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    *,
    was_queued: bool,
) -> None:
    monkeypatch.setattr(sending, "_ABANDONED_MS", 0)
    await approve(ServiceHarness(store))
    reader = sending.WebhookSender(settings_for(receiver), store, here)
    outbox = reader.outbox(store.keys_of_tenant("default"))
    await outbox.prepare()
    lost = await outbox.take("a process that died", block_ms=1)
    assert lost
    if was_queued:
        # The same events give the same message.
        await reader.queue("s0", lost)

    async with telling(store, receiver) as queue:
        await eventually(arrived(receiver))
        await eventually(idle(queue))

    assert len({one.id for one in receiver.requests}) == 1


async def test_a_target_that_is_replaced_verifies_by_both_secrets(
    store: Store, receiver: Receiver
) -> None:
    target = {"url": receiver.url(), "agents": ["support"], "secrets": [2, 1]}
    async with telling(store, receiver, targets={"app": target}):
        await approve(ServiceHarness(store))
        await eventually(arrived(receiver))

    [received] = receiver.requests
    assert verified(received, 1) == verified(received, 2)
    with pytest.raises(NotVerified):
        verified(received, 3)


async def test_without_targets_the_outbox_is_read_by_nobody(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twokey.yml").write_text("policy: {version: 1}")
    settings = Settings.load(
        tmp_path / "twokey.yml", {"TWOKEY_SECRET": SECRETS[0].hex()}
    )
    left = sending.WebhookSender(settings, store, here)
    outbox = left.outbox(store.keys_of_tenant("default"))
    await outbox.prepare()
    await outbox.take(left.consumer, block_ms=1)
    monkeypatch.setattr(sending, "GONE_MS", -1)

    async with sending_webhooks(settings, store, here):

        async def is_dropped() -> bool:
            return not await outbox.is_known()

        await eventually(is_dropped)


async def test_certificates_that_cannot_be_used_stop_the_start(
    store: Store, receiver: Receiver
) -> None:
    receiver.certificates = receiver.certificates.parent / "none.crt"

    with pytest.raises(SettingsError, match=r"webhooks\.certificates"):
        async with telling(store, receiver):
            pass


@pytest.mark.slow
async def test_a_gateway_that_is_killed_after_it_sent_sends_again(
    store: Store, receiver: Receiver, tmp_path: Path
) -> None:
    go_on = asyncio.Event()

    async def wait(_: web.Request) -> web.StreamResponse:
        await go_on.wait()
        return web.Response()

    receiver.answer = wait
    webhooks = {
        "targets": {"app": {"url": receiver.url("localhost"), "agents": ["*"]}},
        "private_hosts": ["localhost"],
        "certificates": str(receiver.certificates),
        "timeout_s": 5,
    }
    url = store.conn.url
    async with gateway_process(tmp_path, url, beside={"webhooks": webhooks}) as first:
        click = await approve(ServiceHarness(store))
        await eventually(arrived(receiver))
        first.process.kill()
        await first.process.wait()
    go_on.set()
    queue = WebhookQueue(store, tenant="default", target="app")
    assert (await queue.standing()).waiting == 1
    sent = len(receiver.requests)
    async with gateway_process(tmp_path, url, beside={"webhooks": webhooks}):
        # Longer than the dead process had the message for.
        await eventually(arrived(receiver, sent + 1), within_s=90)
        await eventually(idle(queue))

    assert len({one.id for one in receiver.requests}) == 1
    assert verified(receiver.requests[-1])["data"]["approval"] == click.approval
