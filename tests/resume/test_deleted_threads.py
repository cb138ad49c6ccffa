"""Deleting a thread ends its pending calls, and their cards show it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Approve, Click, Decided, Outcome, Stale
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.resume.store_threads import ThreadRef
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import ANA, POLICY
from tests.resume.test_cut_off_inside import ONE, delegate

FREE = load_policy(POLICY + "  delegate: {tier: auto}\n", "policy.yml")
RUN_REF = RunRef(agent="shop", thread="t1")
GRAPH = sample_tools.graph(delegate)


@pytest.fixture
async def tk(store: Store, tmp_path: Path) -> AsyncGenerator[Keyturn]:
    """Open a program with an agent that calls another one, which pays."""
    async with Keyturn(policy=FREE, url=store.conn.url, data_dir=tmp_path) as opened:
        yield opened


async def opened(tk: Keyturn) -> list[Approval]:
    """Return the approvals of the thread."""
    keys = tk.store.keys_of_tenant("default")
    listed = await tk.store.approvals.of_run(keys, RUN_REF)
    found = await tk.store.approvals.load_each(one.id for one in listed)
    return [one.approval for one in found]


async def states(tk: Keyturn) -> list[ItemState]:
    """Return the states of the thread's calls."""
    return [item.state for approval in await opened(tk) for item in approval.items]


def given(calls: str) -> dict[str, Any]:
    """Return the input that makes the agent make these calls."""
    return {"messages": [{"role": "user", "content": calls}]}


async def waiting(tk: Keyturn) -> tuple[asyncio.Task[dict[str, Any]], Approval]:
    """Make the inner agent ask; return the run and the number of interrupts."""
    task = json.dumps([["delegate", {"task": ONE}]])
    run = asyncio.create_task(
        tk.run(GRAPH, given(task), thread_id="t1", agent="shop", timeout_s=60)
    )

    async def is_so() -> bool:
        lease = tk.store.keys_of_tenant("default").lease("shop", "t1")
        is_held = await tk.store.conn.command("EXISTS", lease)
        return not is_held and await states(tk) == [ItemState.PENDING]

    await eventually(is_so)
    [approval] = await opened(tk)
    return run, approval


async def decide(tk: Keyturn, approval: Approval) -> Outcome:
    """Approve the one call."""
    item = approval.items[0]
    click = Click(
        approval=approval.id, index=0, version=1, action_hash=item.action_hash
    )
    return await tk.reviews.decide(click, Approve(), ANA)


async def test_what_waits_in_it_is_superseded_and_a_late_click_refused(
    tk: Keyturn,
) -> None:
    run, approval = await waiting(tk)

    await tk.delete(GRAPH, thread_id="t1", agent="shop")

    assert await states(tk) == [ItemState.SUPERSEDED]
    late = await decide(tk, approval)
    assert isinstance(late, Stale)
    assert late.state is ItemState.SUPERSEDED
    with pytest.raises(ThreadUnavailable, match="was deleted"):
        await run
    with pytest.raises(ThreadUnavailable, match="There is no thread"):
        await tk.run(GRAPH, thread_id="t1", agent="shop")
    assert sample_tools.ledger() == []


async def test_a_thread_that_somebody_runs_is_not_deleted(tk: Keyturn) -> None:
    run, approval = await waiting(tk)
    keys = tk.store.keys_of_tenant("default")
    at = ThreadRef(keys, "shop", "t1")

    async with tk.store.threads.lease(keys, at.agent, at.thread):
        with pytest.raises(ThreadUnavailable, match="Another process"):
            await tk.delete(GRAPH, thread_id="t1", agent="shop")

    assert await states(tk) == [ItemState.PENDING]
    await decide(tk, approval)
    assert (await run)["messages"][-1].text == "refunded 1 5"


@pytest.mark.parametrize("number", range(4))
async def test_a_click_at_the_moment_of_the_deletion_has_one_end(
    tk: Keyturn, number: int
) -> None:
    run, approval = await waiting(tk)

    async def delete() -> bool:
        try:
            await tk.delete(GRAPH, thread_id="t1", agent="shop")
        except ThreadUnavailable:
            return False  # the click was faster, and its thread runs
        return True

    outcome, is_deleted = await asyncio.gather(decide(tk, approval), delete())
    ends = await asyncio.gather(run, return_exceptions=True)

    [ended] = await states(tk)
    assert len(sample_tools.ledger()) == (ended is ItemState.EXECUTED)
    if ended is ItemState.EXECUTED:
        assert isinstance(outcome, Decided)
    else:
        assert is_deleted
        assert isinstance(ends[0], ThreadUnavailable)
        assert ended is (
            ItemState.LAPSED if isinstance(outcome, Decided) else ItemState.SUPERSEDED
        )
