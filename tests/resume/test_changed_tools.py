"""A call is decided all the same when its tool changed or went while it waited."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.tools import BaseTool, tool

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack, open_stack

REFUND = ("refund", {"order": "78291", "amount": 899.0})


@tool("refund")
def renamed(order: str, value: float) -> str:
    """Give money back."""
    sample_tools.note(f"refund {order} {value}")
    return "refunded"


@tool
def other(to: str) -> str:
    """Send something else."""
    return to


@asynccontextmanager
async def changed(store: Store, path: Path, given: BaseTool) -> AsyncGenerator[Stack]:
    """Run the shop's agent with another tool, as after a deployment."""
    async with open_checkpoints(str(path)) as saver:
        graph = create_agent(
            sample_tools.obedient(), [given], middleware=[ApprovalMiddleware("shop")]
        )
        yield Stack(store, Runner(attached(graph, saver), agent="shop"), saver)


@pytest.mark.slow
@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (guarded(renamed), "do not fit the tool 'refund', so it did not run"),
        (other, "There is no tool 'refund' here, so this call did not run"),
    ],
    ids=["another-schema", "no-tool"],
)
async def test_a_call_whose_tool_changed_fails_and_the_agent_is_told_why(
    store: Store,
    tmp_path: Path,
    given: BaseTool,
    told: str,
    *,
    is_early: bool,
) -> None:
    path = tmp_path / "checkpoints.sqlite"
    async with open_stack(store, path) as stack:
        async with stack.working():
            await stack.ask(REFUND)
            [item] = await stack.asked()
            await stack.idle()
        if is_early:
            await stack.decide(item)

    async with changed(store, path, given) as stack, stack.working():
        if not is_early:
            await stack.decide(item)
        assert told in await stack.words()
        [approval] = await stack.approvals()

    assert [one.state for one in approval.items] == [ItemState.FAILED]
    assert " ran" not in card_fallback(approval)
    assert sample_tools.ledger() == []
