"""'keyturn webhooks' shows secrets and targets, and tests them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from keyturn.gateway.store.http.webhooks import note_attempt
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.webhook_signatures import (
    parse_webhook_secret,
    verify_webhook,
    webhook_secret,
)
from tests.cli.conftest import Shell
from tests.store_secrets import SECRETS
from tests.webhooks.receiver import Receiver, answering, receiving, trusting


@pytest.fixture
def receiver(tmp_path: Path) -> Generator[Receiver]:
    """Receive in a separate thread: commands run an event loop themselves."""
    loop, found = asyncio.new_event_loop(), list[Receiver]()
    is_up, stop = threading.Event(), asyncio.Event()

    async def receive() -> None:
        async with receiving(tmp_path) as one:
            found.append(one)
            is_up.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(receive(),))
    thread.start()
    is_up.wait()
    with trusting(found[0]):
        yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture
def admin(operator: Shell, receiver: Receiver) -> Shell:
    app = {"url": receiver.url("localhost"), "agents": ["billing"], "secrets": [2, 1]}
    webhooks = {"targets": {"app": app}, "private_hosts": ["localhost"]}
    operator.write(json.dumps({"policy": {"version": 1}, "webhooks": webhooks}))
    return operator


async def fails(store: Store) -> None:
    """Leave a target that takes no messages."""
    await note_attempt(store, "default", "app", "status 500")


def test_the_secret_signs_the_messages(admin: Shell, receiver: Receiver) -> None:
    in_use = admin.said("webhooks", "secret", "app")
    first = admin.said("webhooks", "secret", "app", "--number", "1")
    out = admin.said("webhooks", "test", "app")

    assert "accepted the message (status 204)" in out
    [received] = receiver.requests
    at_s = float(received.headers["webhook-timestamp"])
    for text in (in_use, first):
        key = parse_webhook_secret(text.strip())
        verify_webhook(received.headers, received.body, keys=[key], now_s=at_s)
    assert json.loads(received.body)["type"] == "webhook.test"
    assert parse_webhook_secret(in_use.strip()) == webhook_secret(
        SECRETS[0], "default", "app", 2
    )


def test_a_program_that_fails_is_an_error(admin: Shell, receiver: Receiver) -> None:
    receiver.answer = answering(500)
    err = admin.refused("webhooks", "test", "app")

    assert "app did not accept the message: status 500. It was sent to 'https://" in err


def test_a_target_that_fails_is_listed_and_named_by_the_doctor(admin: Shell) -> None:
    assert "failing_since" not in admin.said("webhooks", "list")
    assert admin.checks()["webhooks"][1] == "targets: 1; no message has failed"
    admin.do(fails)
    [row] = admin.found("webhooks", "list")
    state, text = admin.checks()["webhooks"]

    assert (row["last_ok_at"], row["error"]) == (None, "status 500")
    assert row["failing_since"]
    assert "failing_since=" in admin.said("webhooks", "list")
    assert (state, "app (last with 'status 500')" in text) == ("bad", True)


@pytest.mark.parametrize("word", ["secret", "test"])
def test_another_name_is_a_mistake(admin: Shell, word: str) -> None:
    assert "There is no webhook 'other'" in admin.refused("webhooks", word, "other")


def test_without_targets_there_is_nothing(operator: Shell) -> None:
    assert "There is no webhook" in operator.said("webhooks", "list")
