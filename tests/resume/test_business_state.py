"""A thread whose call depends on a state waits again when the state is another one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool

from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.house import AT_ONCE, House
from twokey.agent import guarded
from twokey.gateway.approvals.decisions import Edit, Reject
from twokey.gateway.approvals.events import EventName
from twokey.gateway.approvals.record import Item
from twokey.gateway.protocol.business_state import BusinessState, state_in
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.graphs import attached
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.store.store import Store

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
async def house(store: Store, tmp_path: Path, orders: Orders) -> AsyncGenerator[House]:
    """Give a shop that also cancels orders, in the state that people approved."""
    more = guarded(cancel, recheck=orders.now)
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        yield House(store, LangGraphLocal(attached(sample_tools.graph(more), saver)))


async def asked(house: House) -> Item:
    """Ask to cancel an order; return the call, with no worker running."""
    async with house.working():
        await house.ask(CANCEL)
        [item] = await house.asked()
        await house.idle()
    return item


async def waits_again(house: House) -> Item:
    """Wait until the thread rests and asks about the call once more."""

    async def is_so() -> bool:
        reopened = await house.events(EventName.ITEM_REOPENED)
        return len(reopened) == 1 == len((await house.runner.probe("t1")).pending)

    await eventually(is_so)
    await house.idle()
    [item] = await house.items()
    assert item.is_pending
    assert sample_tools.ledger() == []
    return item


async def test_a_call_runs_in_the_state_that_was_approved(house: House) -> None:
    await house.decide(await asked(house))

    async with house.working():
        words = await house.words()

    assert words == "cancelled 78291"
    assert sample_tools.ledger() == ["cancel 78291"]


async def test_a_call_in_another_state_waits_and_runs_once_when_it_is_approved(
    house: House, orders: Orders
) -> None:
    await house.decide(await asked(house))
    orders.versions["78291"] = 4

    async with house.working():
        item = await waits_again(house)
        assert state_in(item.action) == BusinessState(value={"version": 4})
        await house.decide(item)
        words = await house.words()

    assert words == "cancelled 78291"
    assert sample_tools.ledger() == ["cancel 78291"]


async def test_a_call_in_another_state_is_rejected_like_any_other(
    house: House, orders: Orders
) -> None:
    await house.decide(await asked(house))
    orders.versions["78291"] = 4

    async with house.working():
        await house.decide(await waits_again(house), Reject(reason="it was shipped"))
        words = await house.words()

    assert "it was shipped" in words
    assert sample_tools.ledger() == []


async def test_an_edit_to_another_order_is_approved_in_the_state_of_that_order(
    house: House,
) -> None:
    await house.decide(await asked(house), Edit(args={"order": "78292"}))

    async with house.working():
        item = await waits_again(house)
        assert item.edit is not None
        assert state_in(item.action) == BusinessState(value={"version": 8})
        await house.decide(item)
        words = await house.words()

    assert "cancelled 78292" in words
    assert sample_tools.ledger() == ["cancel 78292"]


async def test_a_state_that_cannot_be_read_is_read_again_until_it_can(
    house: House, orders: Orders
) -> None:
    await house.decide(await asked(house))
    orders.is_down, orders.reads = True, 0

    async with house.working(retries=AT_ONCE):

        async def was_tried() -> bool:
            return orders.reads > 6

        await eventually(was_tried)
        assert await house.states() == [ItemState.AUTHORIZED]
        assert sample_tools.ledger() == []
        orders.is_down = False
        words = await house.words()

    assert words == "cancelled 78291"
    assert sample_tools.ledger() == ["cancel 78291"]
    assert await house.events(EventName.RUN_PARKED) == []


async def test_a_state_that_cannot_be_read_keeps_out_no_message(
    house: House, orders: Orders
) -> None:
    await house.decide(await asked(house))
    orders.is_down = True

    async with house.working():
        await house.say("never mind")
        words = await house.words()

    assert words == "You said never mind"
    assert await house.states() == [ItemState.LAPSED]
    assert sample_tools.ledger() == []
