"""Programs with an API key run threads: twice at once, cut off, refused, restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from langgraph.graph import MessagesState, StateGraph

from keyturn.gateway.client import http_gateway
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError, KeyRefused, NotVerified, SettingsError
from keyturn.gateway.remote import program
from keyturn.gateway.remote.program import Keyturn as WithoutStore
from keyturn.gateway.remote.program import RemoteKeyturn, RemoteThreadRuns
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
from tests.resume.programs import AT, asked, begin, decide, refund, words
from tests.resume.resume_stack import AT_ONCE, RULES
from tests.store_secrets import SECRETS
from tests.webhooks.receiver import Receiver, receiving, trusting
from tests.webhooks.test_sending import App

Answered = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "BUSY_S", 0.02)
    monkeypatch.setattr("keyturn.gateway.resume.program_runs.BUSY_S", 0.02)
    monkeypatch.setattr("keyturn.gateway.resume.transient_retry.FIRST_PAUSE_S", 0.01)


class Cut:
    """A network between the program and its gateway, which can be cut."""

    def __init__(self) -> None:
        self.is_cut = False
        self.status = 0
        self.asked = 0

    @web.middleware
    async def between(
        self, request: web.Request, handler: Answered
    ) -> web.StreamResponse:
        self.asked += 1
        if self.is_cut:
            assert request.transport
            request.transport.abort()
        if self.status:
            return web.Response(status=self.status, text="no")
        reply = await handler(request)
        if self.is_cut:
            # Cut after the gateway acted: its answer is lost.
            assert request.transport
            request.transport.abort()
        return reply


async def test_two_workers_run_a_thread_once(store: Store, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                remote_program(store, RULES, tmp_path, retries=AT_ONCE)
            )
            for _ in range(2)
        ]
        runs = [begin(tk, sample_tools.graph, refund()) for tk in workers]
        await decide(workers[0], await asked(workers[0]))
        first, second = await asyncio.gather(*runs)

    assert first["messages"] == second["messages"]
    assert words(first) == "refunded 78291 899"
    assert len(sample_tools.ledger()) == 1


@pytest.mark.parametrize("status", [0, 429, 502, 503])
async def test_an_outage_is_outlived(store: Store, tmp_path: Path, status: int) -> None:
    cut = Cut()
    async with remote_program(
        store, RULES, tmp_path, retries=AT_ONCE, middlewares=[cut.between]
    ) as tk:
        run = begin(tk, sample_tools.graph, refund())
        item = await asked(tk)
        cut.is_cut, cut.status = not status, status
        await decide(tk, item)
        seen = cut.asked

        await eventually(lambda: cut.asked > seen + 3)
        assert not run.done()
        assert sample_tools.ledger() == []
        cut.is_cut, cut.status = False, 0
        final = await run

    assert words(final) == "refunded 78291 899"
    assert len(sample_tools.ledger()) == 1


async def test_a_refused_key_ends_its_run_alone(store: Store, tmp_path: Path) -> None:
    async with remote_program(store, RULES, tmp_path, retries=AT_ONCE) as tk:
        run = begin(tk, sample_tools.graph, refund())
        item = await asked(tk)
        connection = cast("Any", tk.service).connection
        right = connection._headers["Authorization"]
        connection._headers["Authorization"] = "Bearer tk_wrong"
        await decide(tk, item)
        with pytest.raises(KeyRefused, match="KEYTURN_API_KEY"):
            await run
        assert sample_tools.ledger() == []
        connection._headers["Authorization"] = right
        final = await tk.run(sample_tools.graph, **AT)

    assert words(final) == "refunded 78291 899"
    assert len(sample_tools.ledger()) == 1


def _same(state: MessagesState) -> MessagesState:
    return state


async def test_a_graph_without_a_checkpointer_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setenv(http_gateway.URL_VARIABLE, "https://gateway.example")
    monkeypatch.setenv(http_gateway.KEY_VARIABLE, "tk_1")
    builder: Any = StateGraph(MessagesState)
    builder.add_node("n", _same)
    builder.set_entry_point("n")
    async with Keyturn.remote() as tk:
        with pytest.raises(GraphError, match="checkpointer"):
            await tk.run(builder, {"name": ""}, thread_id="t1")


async def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="KEYTURN_GATEWAY"):
        Keyturn.remote()
    with pytest.raises(SettingsError, match="KEYTURN_API_KEY"):
        Keyturn.remote("https://gateway.example")
    with pytest.raises(SettingsError, match="async with"):
        await RemoteKeyturn("https://gateway.example", api_key="tk_1").answers(
            [], thread_id="t1"
        )
    with pytest.raises(SettingsError, match=r"keyturn\[server\]"):
        WithoutStore()
    assert WithoutStore.remote is Keyturn.remote


# A program goes on with the thread that a webhook names, at once.


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
async def told_program(store: Store, tmp_path: Path) -> AsyncGenerator[RemoteProgram]:
    async with open_program(store, tmp_path) as found:
        yield found


def handing_to(receiver: Receiver, told_program: RemoteProgram) -> None:
    async def hand(request: web.Request) -> web.StreamResponse:
        await told_program.handle_webhook(
            request.headers, await request.read(), graph=sample_tools.graph
        )
        return web.Response(status=204)

    receiver.answer = hand


async def test_a_thread_that_nobody_runs_is_taken_up(
    store: Store, receiver: Receiver, told_program: RemoteProgram, tmp_path: Path
) -> None:
    async with open_program(store, tmp_path) as before:
        # It stops while people think; its checkpoints are those of the next one.
        running = asyncio.create_task(before.run(sample_tools.graph, refund(), **AT))
        held = await asked(cast("Any", before))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    handing_to(receiver, told_program)
    targets = {"app": {"url": receiver.url(), "agents": ["shop"]}}
    async with App(store, receiver).telling(targets=targets):
        await decide(cast("Any", told_program), held)

        await eventually(lambda: len(sample_tools.ledger()) == 1)
        final = await told_program.wait(sample_tools.graph, **AT)

    assert words(final) == "refunded 78291 899"
    [received] = receiver.requests
    # Once more, and another one: it has finished, so nothing begins.
    await told_program.handle_webhook(
        received.headers, received.body, graph=sample_tools.graph
    )
    await told_program.handle_webhook(signed("msg_2"), BODY, graph=sample_tools.graph)
    assert len(sample_tools.ledger()) == 1


async def test_a_thread_that_waits_here_goes_on_at_once(
    store: Store,
    receiver: Receiver,
    told_program: RemoteProgram,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It does not ask by itself: nothing but the webhook wakes it.
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RemoteThreadRuns, "_next_answer", never)
    handing_to(receiver, told_program)
    targets = {"app": {"url": receiver.url(), "agents": ["shop"]}}
    app = App(store, receiver)
    async with app.telling(targets=targets):
        running = asyncio.create_task(
            told_program.run(sample_tools.graph, refund(), **AT)
        )
        await decide(cast("Any", told_program), await asked(cast("Any", told_program)))
        await app.arrived()
        final = await running

    assert words(final) == "refunded 78291 899"


async def test_a_forged_message_wakes_nobody(told_program: RemoteProgram) -> None:
    with pytest.raises(NotVerified):
        await told_program.handle_webhook(
            signed("msg_1", b"x" * 32), BODY, graph=sample_tools.graph
        )
