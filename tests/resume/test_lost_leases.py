"""A tool that runs ends, and is recorded, when the lease on its thread ended."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool

from keyturn.agent import guarded
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.remote import program
from keyturn.gateway.store.scripts import fences
from keyturn.gateway.store.store import Store
from tests.api.remote_program import remote_program
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import AT_ONCE, POLICY
from tests.resume.test_embed import Open, asked, decide

RULES = load_policy(POLICY + "  auto_long: {tier: auto}\n", "policy.yml")
AT: Any = {"thread_id": "t1", "agent": "shop"}


@pytest.fixture(params=["in process", "http"])
def opened(
    store: Store,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Open:
    """Open a program that runs its threads here, or over HTTP."""
    monkeypatch.setattr(program, "BUSY_S", 0.02)
    monkeypatch.setattr("keyturn.gateway.resume.program_runs.BUSY_S", 0.02)

    @asynccontextmanager
    async def one() -> AsyncGenerator[Keyturn]:
        if request.param == "http":
            async with remote_program(store, RULES, tmp_path, retries=AT_ONCE) as tk:
                yield tk
            return
        async with Keyturn(
            policy=RULES, url=store.conn.url, data_dir=tmp_path, retries=AT_ONCE
        ) as tk:
            yield tk

    return one


def long_tool(name: str, *, is_async: bool, ends: threading.Event) -> BaseTool:
    """Return a tool that ends its lease, and works on until ``ends`` is set."""

    def begin() -> None:
        sample_tools.note("begin")
        lease = fences.current()
        assert lease
        lease.end()

    def work() -> str:
        """Take a while."""
        begin()
        assert ends.wait(60)
        sample_tools.note("end")
        return "did it"

    async def work_async() -> str:
        """Take a while."""
        begin()
        await asyncio.to_thread(ends.wait, 60)
        sample_tools.note("end")
        return "did it"

    if is_async:
        return guarded(tool(name)(work_async))
    return guarded(tool(name)(work))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", ["long", "auto_long"])
async def test_a_tool_ends_and_is_recorded_after_its_lease_ended(
    opened: Open, store: Store, name: str, *, is_async: bool
) -> None:
    ends, begins = threading.Event(), sample_tools.ledger
    keys = store.keys_of_tenant("default")
    lease = keys.lease("shop", "t1")
    graph = sample_tools.graph(long_tool(name, is_async=is_async, ends=ends))
    said = {"messages": [{"role": "user", "content": json.dumps([(name, {})])}]}

    async def has_begun() -> bool:
        return bool(begins())

    async def has_ended() -> bool:
        return begins() == ["begin", "end"]

    async def is_taken_again() -> bool:
        return bool(await store.conn.command("EXISTS", lease))

    async with opened() as tk:
        run = asyncio.create_task(tk.run(graph, said, **AT))
        item: Item | None = None
        if name == "long":
            item = await asked(tk)
            await decide(tk, item)
        await eventually(has_begun)
        if name == "long":
            # The next owner finds a running call: it waits, and opens no new request.
            await store.conn.command("DEL", lease)
            await eventually(is_taken_again)
        ends.set()
        await eventually(has_ended)
        await store.conn.command("DEL", lease)
        final = await run

        assert final["messages"][-1].text == "did it"
        if item is not None:
            loaded = await tk.reviews.read(item.id.rpartition(".")[0])
            assert loaded
            assert loaded.approval.items[0].state is ItemState.EXECUTED
    assert begins() == ["begin", "end"]
