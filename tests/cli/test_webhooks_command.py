"""'keyturn webhooks' shows secrets and targets, and tests them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from aiohttp import web

from keyturn.cli.command_context import CommandContext
from keyturn.cli.doctor import run_checks
from keyturn.cli.main import USAGE, run
from keyturn.cli.reviewer_checks import Check, State
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.http.webhooks import note_attempt
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.webhook_signatures import (
    parse_webhook_secret,
    verify_webhook,
    webhook_secret,
)
from tests.store_secrets import SECRETS
from tests.webhooks.receiver import Receiver, receiving, trusting

Tell = Callable[..., tuple[int, str, str]]


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
def engine_url(tmp_path: Path) -> Generator[str]:
    with EmbeddedEngine(tmp_path / "engine") as engine:
        yield engine.url


@pytest.fixture
def tell(
    tmp_path: Path,
    engine_url: str,
    receiver: Receiver,
    capsys: pytest.CaptureFixture[str],
) -> Tell:
    config = tmp_path / "keyturn.yml"
    app = {"url": receiver.url("localhost"), "agents": ["billing"], "secrets": [2, 1]}
    webhooks = {
        "targets": {"app": app},
        "private_hosts": ["localhost"],
    }
    config.write_text(json.dumps({"policy": {"version": 1}, "webhooks": webhooks}))

    def told(*words: str) -> tuple[int, str, str]:
        env = {"KEYTURN_REDIS_URL": engine_url, "KEYTURN_SECRET": SECRETS[0].hex()}
        code = run(["--config", str(config), "webhooks", *words], env)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return told


def failing(url: str) -> None:
    """Leave a target that takes no messages."""

    async def leave() -> None:
        store = Store(url, secrets=SECRETS)
        await note_attempt(store, "default", "app", "status 500")
        await store.close()

    asyncio.run(leave())


def test_the_secret_is_the_one_that_messages_are_signed_with(
    tell: Tell, receiver: Receiver
) -> None:
    _, in_use, _ = tell("secret", "app")
    _, first, _ = tell("secret", "app", "--number", "1")
    code, out, _ = tell("test", "app")

    assert code == 0
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


def test_a_program_that_does_not_answer_well_is_an_error(
    tell: Tell, receiver: Receiver
) -> None:
    async def fail(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    receiver.answer = fail
    code, _, err = tell("test", "app")

    assert code == USAGE
    assert "app did not accept the message: status 500. It was sent to 'https://" in err


def test_a_target_that_fails_is_listed(tell: Tell, engine_url: str) -> None:
    before = tell("list")[1]
    failing(engine_url)
    [row] = json.loads(tell("list", "--json")[1])
    shown = tell("list")[1]

    assert "no messages yet" in before
    assert (row["last_ok_at"], row["error"]) == (None, "status 500")
    assert row["failing_since"]
    assert "failing since" in shown


@pytest.mark.parametrize("word", ["secret", "test"])
def test_another_name_is_a_mistake(tell: Tell, word: str) -> None:
    code, _, err = tell(word, "other")

    assert code == USAGE
    assert "There is no webhook 'other'" in err


def examined(tmp_path: Path, engine_url: str) -> Check:
    """Return what the doctor says of the webhooks."""
    env = {"KEYTURN_REDIS_URL": engine_url, "KEYTURN_SECRET": SECRETS[0].hex()}

    async def looked() -> Check:
        command = CommandContext(env, tmp_path / "keyturn.yml")
        found = [one async for one in run_checks(command, post=False)]
        return next(one for one in found if one.name == "webhooks")

    return asyncio.run(looked())


def test_the_doctor_says_which_program_takes_no_messages(
    tell: Tell, engine_url: str, tmp_path: Path
) -> None:
    tell("list")
    before = examined(tmp_path, engine_url)
    failing(engine_url)
    after = examined(tmp_path, engine_url)

    assert before.text == "targets: 1; no message has failed"
    assert after.state is State.BAD
    assert "app (last with 'status 500')" in after.text


def test_without_targets_there_is_nothing(
    tmp_path: Path, engine_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "empty.yml"
    config.write_text("policy: {version: 1}\n")
    env = {"KEYTURN_REDIS_URL": engine_url, "KEYTURN_SECRET": SECRETS[0].hex()}

    assert run(["--config", str(config), "webhooks", "list"], env) == 0
    assert "There is no webhook" in capsys.readouterr().out
