"""An agent inside a tool asks too; the tool outside waits for it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langchain_core.tools import tool

from keyturn.agent import guarded
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack

TWO = [["refund", {"order": "1", "amount": 5}], ["refund", {"order": "2", "amount": 6}]]


@tool
async def delegate(task: str) -> str:
    """Call another agent that acts."""
    sample_tools.note(f"delegate {len(task)}")
    inner = sample_tools.graph()
    given = {"messages": [{"role": "user", "content": task}]}
    state = await inner.ainvoke(given)  # pyright: ignore[reportUnknownMemberType] - its overloads are partial
    return str(state["messages"][-1].text)


@pytest.fixture
async def stack(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give a stack whose agent can delegate."""
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        graph = sample_tools.graph(guarded(delegate))
        yield Stack(store, Runner(attached(graph, saver)))


@pytest.mark.slow
async def test_the_tool_outside_keeps_its_authorization_while_the_inside_asks(
    stack: Stack,
) -> None:
    async with stack.working():
        await stack.ask(("delegate", {"task": json.dumps(TWO)}))
        [outer] = await stack.asked()
        await stack.decide(outer)

        first, second = await stack.asked(2)
        await stack.idle()
        assert (await stack.states())[0] is ItemState.AUTHORIZED

        await stack.decide(second)
        await stack.asked(1)
        await stack.idle()
        await stack.decide(first)

        assert await stack.words() == "refunded 1 5 | refunded 2 6"
        await stack.idle()

    assert await stack.states() == [ItemState.EXECUTED] * 3
    refunds = sorted(
        line.split()[1] for line in sample_tools.ledger() if line[0] == "r"
    )
    assert refunds == ["1", "2"]
