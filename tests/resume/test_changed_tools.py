"""A call is decided all the same when its tool, or what it depends on, changed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.tools import BaseTool, tool

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import AT_ONCE, REFUND, Stack, open_stack


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


CANCEL = ("cancel", {"order": "78291"})


class Orders:
    """The versions of orders; reading them can be made to fail."""

    def __init__(self) -> None:
        self.versions = {"78291": 3, "78292": 8}
        self.is_down = False
        self.reads = 0

    async def now(self, order: str) -> dict[str, Any]:
        self.reads += 1
        if self.is_down:
            raise ConnectionError("no orders")
        return {"version": self.versions[order]}


@tool
def cancel(order: str) -> str:
    """Cancel an order."""
    sample_tools.note(f"cancel {order}")
    return f"cancelled {order}"


@pytest.fixture
def orders() -> Orders:
    return Orders()


@pytest.fixture
async def stack(store: Store, tmp_path: Path, orders: Orders) -> AsyncGenerator[Stack]:
    """Give a shop that also cancels orders, in the state that people approved."""
    more = guarded(cancel, recheck=orders.now)
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        yield Stack(store, Runner(attached(sample_tools.graph(more), saver)))


async def asked(stack: Stack) -> Item:
    """Ask to cancel an order; return the call, with no worker running."""
    async with stack.working():
        await stack.ask(CANCEL)
        [item] = await stack.asked()
        await stack.idle()
    return item


@pytest.mark.slow
async def test_a_state_that_cannot_be_read_is_read_again_until_it_can(
    stack: Stack, orders: Orders
) -> None:
    await stack.decide(await asked(stack))
    orders.is_down, orders.reads = True, 0

    async with stack.working(retries=AT_ONCE):

        async def was_tried() -> bool:
            return orders.reads > 6

        await eventually(was_tried)
        assert await stack.states() == [ItemState.AUTHORIZED]
        assert sample_tools.ledger() == []
        orders.is_down = False
        words = await stack.words()

    assert words == "cancelled 78291"
    assert sample_tools.ledger() == ["cancel 78291"]
    assert await stack.events(EventName.RUN_PARKED) == []
