"""A thread whose call depends on a state waits again when the state is another one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool

from keyturn.agent import guarded
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import AT_ONCE, Stack

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
