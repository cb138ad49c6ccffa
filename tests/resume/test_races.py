"""Many workers, clicks and lost leases lose no continuation and run a call once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langchain_core.tools import BaseTool, tool

from keyturn.agent import guarded
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.remote import program
from keyturn.gateway.store.scripts import fences
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.levels import size
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
from tests.resume.resume_stack import AT_ONCE, EMAIL, POLICY, Stack, open_stack
from tests.store_secrets import SECRETS


@pytest.fixture
async def second(stack: Stack, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give another process's view of the same stack."""
    store = Store(stack.store.conn.url, secrets=SECRETS, lease_ms=2000)
    async with open_stack(store, tmp_path / "checkpoints.db") as opened:
        yield opened
    await store.close()


@pytest.mark.slow
async def test_two_workers_lose_no_continuation(stack: Stack, second: Stack) -> None:
    threads = [f"t{number}" for number in range(size(deep=40, short=10))]
    async with stack.working(), second.working():
        for thread in threads:
            await stack.ask(("refund", {"order": thread, "amount": 1.0}), EMAIL,
                            thread=thread)  # fmt: skip
        for thread in threads:
            items = await stack.asked(2, thread=thread)
            await asyncio.gather(*(stack.decide(item) for item in items))
        for thread in threads:
            words = await stack.words(thread=thread)
            assert words == f"refunded {thread} 1 | mailed ana@example.org"

    assert (
        len(sample_tools.ledger())
        == len(set(sample_tools.ledger()))
        == 2 * len(threads)
    )


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

    async def is_taken_again() -> bool:
        return bool(await store.conn.command("EXISTS", lease))

    async with opened(policy=RULES, retries=AT_ONCE) as tk:
        run = begin(tk, graph, calling_tools((name, {})))
        if name == "long":
            await decide(tk, await asked(tk))
        await eventually(lambda: bool(begins()))
        if name == "long":
            # The next owner finds a running call: it waits, and opens no new request.
            await store.conn.command("DEL", lease)
            await eventually(is_taken_again)
        ends.set()
        await eventually(lambda: begins() == ["begin", "end"])
        await store.conn.command("DEL", lease)
        final = await run

        assert words(final) == "did it"
        if name == "long":
            [ended] = await items_of(tk)
            assert ended.state is ItemState.EXECUTED
    assert begins() == ["begin", "end"]
