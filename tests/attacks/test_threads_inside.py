"""An agent inside a tool that is given a thread of its own is a run of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool

from gateway.agent import guarded
from gateway.approvals.record import Approval
from gateway.resume.checkpoints import open_checkpoints
from gateway.resume.graphs import attached
from gateway.resume.langgraph_local import LangGraphLocal
from gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import shop
from tests.resume.house import DAN, House

REFUND = [["refund", {"order": "1", "amount": 5}]]
OWN: RunnableConfig = {"configurable": {"thread_id": "own"}}


@tool
async def hand_on(task: str) -> str:
    """Let another agent do something in a thread of its own."""
    given = {"messages": [{"role": "user", "content": task}]}
    await shop.graph().ainvoke(given, OWN)  # pyright: ignore[reportUnknownMemberType] - its overloads are partial
    return "handed on"


@pytest.fixture
async def house(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[House]:
    """Give a house whose agent hands tasks on."""
    monkeypatch.setenv(shop.LEDGER, str(tmp_path / "ledger.txt"))
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        graph = shop.graph(guarded(hand_on))
        yield House(store, LangGraphLocal(attached(graph, saver)))


@pytest.mark.xfail(
    strict=True,
    reason="Self-approval: gateway/agent/homes.py (`outer_of`) makes such an agent a "
    "run of its own, and gateway/service/submitting.py takes principals from that run "
    "alone. The turn would have to name the runs around it, and the thread's facts "
    "would have to keep who asked in them, for what it asks after it was resumed.",
)
async def test_whoever_asked_outside_is_a_principal_in_that_thread_too(
    house: House,
) -> None:
    opened: list[Approval] = []

    async def is_opened() -> bool:
        opened[:] = await house.approvals("own")
        return bool(opened)

    async with house.working():
        await house.ask(("hand_on", {"task": json.dumps(REFUND)}))
        [outer] = await house.asked()
        await house.decide(outer)
        await eventually(is_opened)

    assert [*opened[0].principals] == [DAN]
