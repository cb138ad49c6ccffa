"""Tampering with an agent's state, graph or jobs makes no held call run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.types import Command

from keyturn.agent import connected
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack, open_stack
from tests.stored_records import put_detail

REFUND = ("refund", {"order": "78291", "amount": 899.0})
CONFIG: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}
NODE = "model"


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test a separate ledger."""
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger.txt"))


@pytest.fixture
async def stack(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Open a gateway with the shop's agent, without a worker."""
    async with open_stack(store, tmp_path / "checkpoints.db") as opened:
        yield opened


def graph_of(stack: Stack) -> Any:
    return cast("Any", stack.runner)._graph


def approving(item: Item, **changes: object) -> dict[str, object]:
    """Return the answer that an approval would be resumed with."""
    answer = {"type": "approve", "item_id": item.id, "action_hash": item.action_hash}
    return {**answer, **changes}


async def paused(stack: Stack, *calls: tuple[str, dict[str, Any]]) -> list[Item]:
    """Make the agent's call, and leave it pending without a worker."""
    async with stack.working():
        await stack.ask(*(calls or [REFUND]))
        return await stack.asked(len(calls) or 1)


@pytest.mark.slow
async def test_a_thread_with_an_unreadable_record_goes_on(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        approval_id = item.id.rpartition(".")[0]
        conn, keys = stack.store.conn, stack.keys
        await put_detail(conn, keys, approval_id, tier="{broken")
        await conn.command("ZADD", keys.expiry, 0, keys.listed(approval_id))

        assert "no record of this call that it can read" in await stack.words()

        await stack.ask(("email", {"to": "a@b.c"}))
        [other] = [one for one in await stack.asked() if one.tool == "email"]
        await stack.decide(other)
        await stack.words(2)

    assert [line.split()[0] for line in sample_tools.ledger()] == ["email"]


@pytest.mark.slow
async def test_an_old_checkpoint_executes_nothing_again(stack: Stack) -> None:
    [item] = await paused(stack)
    graph = graph_of(stack)
    before = await graph.aget_state(CONFIG)
    async with stack.working() as gateway:
        await stack.decide(item)
        await stack.words()
        answers = {before.interrupts[0].id: approving(item)}
        with connected(gateway):
            end = await graph.ainvoke(Command(resume=answers), before.config)

    assert len(sample_tools.ledger()) == 1
    assert "refunded 78291 899" in str(end["messages"][-1].text)


@pytest.mark.slow
async def test_a_copied_thread_executes_nothing(stack: Stack) -> None:
    [item] = await paused(stack)
    graph = graph_of(stack)
    state = await graph.aget_state(CONFIG)
    copy: Any = {"configurable": {"thread_id": "t2", "checkpoint_ns": ""}}
    await graph.aupdate_state(copy, state.values, as_node=NODE)
    async with stack.working() as gateway:
        await stack.decide(item)
        await stack.words()
        with connected(gateway):
            await graph.ainvoke(None, copy)
            [pause] = (await graph.aget_state(copy)).interrupts
            answers = {pause.id: approving(item)}
            end = await graph.ainvoke(Command(resume=answers), copy)

    assert len(sample_tools.ledger()) == 1
    assert "must not run" in str(end["messages"][-1].text)


async def test_an_unreadable_job_holds_nothing_up(stack: Stack) -> None:
    conn, keys = stack.store.conn, stack.keys
    async with stack.working():
        for junk in ("{broken", "[]", '{"kind":"dance"}', "null", "1", ""):
            await conn.command("XADD", keys.jobs, "*", "j", junk)
        await conn.command("XADD", keys.jobs, "*", "other", "field")
        await conn.command("XADD", keys.jobs, "*", b"\xff", b"\xff")
        await conn.command("ZADD", keys.retry, 0, "{broken")

        async with asyncio.timeout(20):
            await stack.ask(REFUND)
            [item] = await stack.asked()
            await stack.decide(item)
            await stack.words()

    assert len(sample_tools.ledger()) == 1
