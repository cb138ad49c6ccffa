"""Programs with an API key run threads: twice at once, cut off, refused, restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from langgraph.graph import MessagesState, StateGraph

from keyturn.gateway.client import http_gateway
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import (
    GraphError,
    KeyRefused,
    SettingsError,
)
from keyturn.gateway.remote import program
from keyturn.gateway.remote.program import Keyturn as WithoutStore
from keyturn.gateway.remote.program import RemoteKeyturn
from keyturn.gateway.store.store import Store
from tests.api.remote_program import remote_program
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.programs import AT, asked, begin, decide, refund, words
from tests.resume.resume_stack import AT_ONCE, RULES

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
async def test_a_thread_outlives_a_gateway_that_is_away(
    store: Store, tmp_path: Path, status: int
) -> None:
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
