"""A tool that runs ends, and is recorded, when the lease on its thread ended."""

from __future__ import annotations

import asyncio
import threading

import pytest
from langchain_core.tools import BaseTool, tool

from keyturn.agent import guarded
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.remote import program
from keyturn.gateway.store.scripts import fences
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.programs import (
    Open,
    asked,
    begin,
    calling_tools,
    decide,
    items_of,
    words,
)
from tests.resume.resume_stack import AT_ONCE, POLICY

RULES = load_policy(POLICY + "  auto_long: {tier: auto}\n", "policy.yml")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "BUSY_S", 0.02)
    monkeypatch.setattr("keyturn.gateway.resume.program_runs.BUSY_S", 0.02)


def long_tool(name: str, *, is_async: bool, ends: threading.Event) -> BaseTool:
    """Return a tool that ends its lease, and works on until ``ends`` is set."""

    def start() -> None:
        sample_tools.note("begin")
        lease = fences.current()
        assert lease
        lease.end()

    def work() -> str:
        """Take a while."""
        start()
        assert ends.wait(60)
        sample_tools.note("end")
        return "did it"

    async def work_async() -> str:
        """Take a while."""
        start()
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

    async def has_begun() -> bool:
        return bool(begins())

    async def has_ended() -> bool:
        return begins() == ["begin", "end"]

    async def is_taken_again() -> bool:
        return bool(await store.conn.command("EXISTS", lease))

    async with opened(policy=RULES, retries=AT_ONCE) as tk:
        run = begin(tk, graph, calling_tools((name, {})))
        if name == "long":
            await decide(tk, await asked(tk))
        await eventually(has_begun)
        if name == "long":
            # The next owner finds a running call: it waits, and opens no new request.
            await store.conn.command("DEL", lease)
            await eventually(is_taken_again)
        ends.set()
        await eventually(has_ended)
        await store.conn.command("DEL", lease)
        final = await run

        assert words(final) == "did it"
        if name == "long":
            [ended] = await items_of(tk)
            assert ended.state is ItemState.EXECUTED
    assert begins() == ["begin", "end"]
