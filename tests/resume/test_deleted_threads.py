"""Deleting a thread ends its pending calls, and their cards show it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Decided, Stale
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.programs import (
    AT,
    asked,
    begin,
    calling_tools,
    decide,
    in_process,
    items_of,
)
from tests.resume.resume_stack import POLICY
from tests.resume.test_cut_off_inside import ONE, delegate

FREE = load_policy(POLICY + "  delegate: {tier: auto}\n", "policy.yml")
GRAPH = sample_tools.graph(delegate)


@pytest.fixture
async def tk(store: Store, tmp_path: Path) -> AsyncGenerator[Keyturn]:
    """Open a program with an agent that calls another one, which pays."""
    async with in_process(store, tmp_path, policy=FREE) as opened:
        yield opened


async def waiting(tk: Keyturn) -> tuple[asyncio.Task[dict[str, Any]], Item]:
    """Make the inner agent ask; return the run and the call."""
    given = calling_tools(("delegate", {"task": ONE}))
    run = begin(tk, GRAPH, given, timeout_s=60)
    return run, await asked(tk)


async def states(tk: Keyturn) -> list[ItemState]:
    """Return the states of the thread's calls."""
    return [item.state for item in await items_of(tk)]


async def test_what_waits_in_it_is_superseded_and_a_late_click_refused(
    tk: Keyturn,
) -> None:
    run, item = await waiting(tk)

    await tk.delete(GRAPH, **AT)

    assert await states(tk) == [ItemState.SUPERSEDED]
    late = await decide(tk, item)
    assert isinstance(late, Stale)
    assert late.state is ItemState.SUPERSEDED
    with pytest.raises(ThreadUnavailable, match="was deleted"):
        await run
    with pytest.raises(ThreadUnavailable, match="There is no thread"):
        await tk.run(GRAPH, **AT)
    assert sample_tools.ledger() == []


async def test_a_thread_that_somebody_runs_is_not_deleted(tk: Keyturn) -> None:
    run, item = await waiting(tk)
    keys = tk.store.keys_of_tenant("default")

    async with tk.store.threads.lease(keys, "shop", "t1"):
        with pytest.raises(ThreadUnavailable, match="Another process"):
            await tk.delete(GRAPH, **AT)

    assert await states(tk) == [ItemState.PENDING]
    await decide(tk, item)
    assert (await run)["messages"][-1].text == "refunded 1 5"


@pytest.mark.parametrize("number", range(4))
async def test_a_click_at_the_moment_of_the_deletion_has_one_end(
    tk: Keyturn, number: int
) -> None:
    run, item = await waiting(tk)

    async def delete() -> bool:
        try:
            await tk.delete(GRAPH, **AT)
        except ThreadUnavailable:
            return False  # the click was faster, and its thread runs
        return True

    outcome, is_deleted = await asyncio.gather(decide(tk, item), delete())
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
