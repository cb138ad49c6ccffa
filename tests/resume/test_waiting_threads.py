"""The threads that wait are found in every kind of checkpointer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from keyturn.gateway.resume import recovery as listing
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.recovery import newest_threads
from tests.resume.postgres_server import fresh_database

Saver = BaseCheckpointSaver[Any]


class State(TypedDict):
    """What the graphs keep."""

    asks: bool
    said: str


def node(state: State) -> dict[str, str]:
    """Make a call, or answer nothing."""
    return {"said": str(interrupt("well?")) if state["asks"] else ""}


@pytest.fixture(params=["sqlite", "postgres"])
async def saver(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[Saver]:
    """Give an empty saver."""
    place = str(tmp_path / "c.db")
    if request.param == "postgres":
        place = fresh_database(request.getfixturevalue("postgres"))
    async with open_checkpoints(place) as opened:
        yield opened


def graph_on(saver: Saver, *, depth: int) -> Any:
    """Return a graph that asks at once or in a graph inside."""
    graph: Any = StateGraph(State)
    graph.add_node("node", node).add_edge(START, "node")
    if depth:
        inner, graph = graph.compile(), StateGraph(State)
        graph.add_node("in", inner).add_edge(START, "in")
    return graph.compile(checkpointer=saver)


def at(thread: str) -> RunnableConfig:
    """Name a thread."""
    return {"configurable": {"thread_id": thread}}


async def test_those_that_ask_are_listed_and_no_others(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    for depth in (0, 1):
        graph = graph_on(saver, depth=depth)
        for number in range(3):
            await graph.ainvoke({"asks": True}, at(f"asks-{depth}-{number}"))
            await graph.ainvoke({"asks": False}, at(f"says-{depth}-{number}"))
        answered = at(f"answered-{depth}")
        await graph.ainvoke({"asks": True}, answered)
        await graph.ainvoke(Command(resume="yes"), answered)

    pages = [page async for page in newest_threads(saver)]
    found = [thread for page in pages for thread, is_waiting in page if is_waiting]

    asking = [f"asks-{depth}-{number}" for depth in (0, 1) for number in range(3)]
    assert sorted(found) == asking
