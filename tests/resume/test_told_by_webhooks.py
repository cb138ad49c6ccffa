"""A program goes on with the thread that a webhook names, at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.remote.program import RemoteThreadRuns
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.webhook_signatures import (
    DECIDED,
    Message,
    News,
    body_of,
    headers,
    shown,
    webhook_secret,
)
from tests.api.remote_program import RemoteProgram, remote_program
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.programs import AT, asked, decide, refund, words
from tests.resume.resume_stack import AT_ONCE, RULES
from tests.store_secrets import SECRETS
from tests.webhooks.receiver import Receiver, receiving, trusting
from tests.webhooks.test_sending import App

KEY = webhook_secret(SECRETS[0], "default", "app", 1)
BODY = body_of(DECIDED, News(agent="shop", thread="t1", approval="ap_1"), 5)


def signed(id_: str, key: bytes = KEY) -> dict[str, str]:
    now_s = int(time.time())  # noqa: TID251 - what a program compares with
    return headers(Message(id_, now_s, BODY), [key])


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYTURN_WEBHOOK_SECRET", shown(KEY))


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncGenerator[Receiver]:
    async with receiving(tmp_path) as found:
        with trusting(found):
            yield found


@asynccontextmanager
async def open_program(store: Store, folder: Path) -> AsyncGenerator[RemoteProgram]:
    async with remote_program(store, RULES, folder, retries=AT_ONCE) as tk:
        yield cast("RemoteProgram", cast("object", tk))


@pytest.fixture
async def program(store: Store, tmp_path: Path) -> AsyncGenerator[RemoteProgram]:
    async with open_program(store, tmp_path) as found:
        yield found


def handing_to(receiver: Receiver, program: RemoteProgram) -> None:
    async def hand(request: web.Request) -> web.StreamResponse:
        await program.handle_webhook(
            request.headers, await request.read(), graph=sample_tools.graph
        )
        return web.Response(status=204)

    receiver.answer = hand


async def test_a_thread_that_nobody_runs_is_taken_up(
    store: Store, receiver: Receiver, program: RemoteProgram, tmp_path: Path
) -> None:
    async with open_program(store, tmp_path) as before:
        # It stops while people think; its checkpoints are those of the next one.
        running = asyncio.create_task(before.run(sample_tools.graph, refund(), **AT))
        held = await asked(cast("Any", before))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    handing_to(receiver, program)
    targets = {"app": {"url": receiver.url(), "agents": ["shop"]}}
    async with App(store, receiver).telling(targets=targets):
        await decide(cast("Any", program), held)

        await eventually(lambda: len(sample_tools.ledger()) == 1)
        final = await program.wait(sample_tools.graph, **AT)

    assert words(final) == "refunded 78291 899"
    [received] = receiver.requests
    # Once more, and another one: it has finished, so nothing begins.
    await program.handle_webhook(
        received.headers, received.body, graph=sample_tools.graph
    )
    await program.handle_webhook(signed("msg_2"), BODY, graph=sample_tools.graph)
    assert len(sample_tools.ledger()) == 1


async def test_a_thread_that_waits_here_goes_on_at_once(
    store: Store,
    receiver: Receiver,
    program: RemoteProgram,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It does not ask by itself: nothing but the webhook wakes it.
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RemoteThreadRuns, "_next_answer", never)
    handing_to(receiver, program)
    targets = {"app": {"url": receiver.url(), "agents": ["shop"]}}
    app = App(store, receiver)
    async with app.telling(targets=targets):
        running = asyncio.create_task(program.run(sample_tools.graph, refund(), **AT))
        await decide(cast("Any", program), await asked(cast("Any", program)))
        await app.arrived()
        final = await running

    assert words(final) == "refunded 78291 899"


async def test_a_forged_message_wakes_nobody(program: RemoteProgram) -> None:
    with pytest.raises(NotVerified):
        await program.handle_webhook(
            signed("msg_1", b"x" * 32), BODY, graph=sample_tools.graph
        )
