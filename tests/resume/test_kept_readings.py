"""A run reads a checkpoint once, and never an older one than it would have read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from twokey.gateway import clock
from twokey.gateway.resume import kept_readings
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.fence_tables import SqliteFence
from twokey.gateway.resume.fenced_saver import FencedSaver
from twokey.gateway.resume.graphs import Graph, attached
from twokey.gateway.resume.kept_readings import keeping
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.resume.leases import under_lease
from twokey.gateway.resume.run_events import ThreadRef
from twokey.gateway.store.fences import current
from twokey.gateway.store.store import Store

CONFIG: RunnableConfig = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}


def joined(before: list[str], new: list[str]) -> list[str]:
    """Join in place, as reducers of users may."""
    before += new
    return before


class State(TypedDict):
    """What the nodes said."""

    said: Annotated[list[str], joined]


def asks(state: State) -> State:
    return {"said": [str(interrupt("ask"))]}


def asks_then_ends(state: State) -> State:
    return {"said": [str(interrupt("other"))]}


def says(state: State) -> State:
    return {"said": ["done"]}


def graph(*nodes: Callable[[State], State]) -> Graph:
    """Return a graph that runs all nodes at once."""
    made = cast("Any", StateGraph(State))
    for node in nodes:
        made.add_node(node)
        made.add_edge(START, node.__name__)
    return cast("Graph", made.compile())


@pytest.fixture
async def run(tmp_path: Path) -> AsyncGenerator[Callable[..., LangGraphLocal]]:
    """Give what makes a runner of nodes, with checkpoints in SQLite."""
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        yield lambda *nodes: LangGraphLocal(attached(graph(*nodes), saver))


@pytest.fixture
def at(store: Store) -> ThreadRef:
    return ThreadRef(store.keys_of_tenant("default"), "default", "shop", "t1")


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each reading of the database under a lease."""
    made: list[str] = []
    for name in ("read", "raise_and_read"):
        plain = getattr(SqliteFence, name)

        def noted(*args: object, _name: str = name, _plain: Any = plain) -> object:
            if current() is not None:
                made.append(_name)
            return _plain(*args)

        monkeypatch.setattr(SqliteFence, name, noted)
    return made


def saver_of(one: LangGraphLocal) -> FencedSaver:
    return cast("FencedSaver", cast("Any", one)._graph.checkpointer)


async def begin(one: LangGraphLocal) -> None:
    await one.give("t1", {"said": ["begun"]}, key="k")


async def answer(one: LangGraphLocal, *, number: int = 0) -> None:
    """Do what a worker does: look where the thread stands, then answer."""
    state = await one.probe("t1")
    asked = state.pending[number]
    answers = {asked.id: cast("Any", f"answer to {asked.value}")}
    await one.resume("t1", answers, key="k")


async def said(one: LangGraphLocal) -> list[str]:
    values = await one.values("t1")
    return cast("list[str]", values["said"])


async def test_a_thread_is_read_once_to_be_answered(
    store: Store,
    run: Callable[..., LangGraphLocal],
    at: ThreadRef,
    readings: list[str],
) -> None:
    one = run(asks)
    await begin(one)

    await under_lease(store, at, lambda: answer(one))

    assert readings == ["raise_and_read"]
    assert await said(one) == ["begun", "answer to ask"]


async def test_a_thread_with_results_beside_its_questions_is_read_again(
    store: Store,
    run: Callable[..., LangGraphLocal],
    at: ThreadRef,
    readings: list[str],
) -> None:
    one = run(says, asks, asks_then_ends)
    await begin(one)

    # To show where it stands, its reducer has changed what was read.
    await under_lease(store, at, lambda: answer(one))
    await under_lease(store, at, lambda: answer(one))

    assert readings == ["raise_and_read", "read"] * 2
    expected = ["answer to ask", "answer to other", "begun", "done"]
    assert sorted(await said(one)) == expected


async def test_what_was_written_since_is_read(
    store: Store, run: Callable[..., LangGraphLocal], at: ThreadRef
) -> None:
    one = run(asks)
    await begin(one)
    saver = saver_of(one)

    async def written_in_between() -> list[str]:
        with keeping():
            found = await saver.aget_tuple(CONFIG)
        assert found is not None
        await saver.aput_writes(found.config, [("said", ["new"])], "task-1")
        again = await saver.aget_tuple(CONFIG)
        assert again is not None
        return [channel for _, channel, _ in again.pending_writes or ()]

    channels = await under_lease(store, at, written_in_between)

    assert "said" in channels


@pytest.mark.parametrize("waits_s", [0.05, 0.2])
async def test_a_reading_is_kept_for_a_moment_only(
    store: Store,
    run: Callable[..., LangGraphLocal],
    at: ThreadRef,
    readings: list[str],
    monkeypatch: pytest.MonkeyPatch,
    waits_s: float,
) -> None:
    one, late_s = run(asks), 0.0
    now_s = clock.now_s()
    monkeypatch.setattr(kept_readings, "now_s", lambda: now_s + late_s)
    await begin(one)

    async def slowly() -> None:
        nonlocal late_s
        state = await one.probe("t1")
        late_s = waits_s
        await one.resume("t1", {state.pending[0].id: cast("Any", "yes")}, key="k")

    await under_lease(store, at, slowly)

    assert len(readings) == (1 if waits_s < kept_readings.KEPT_S else 2)


async def test_no_other_lease_place_or_second_reader_gets_a_reading(
    store: Store,
    run: Callable[..., LangGraphLocal],
    at: ThreadRef,
    readings: list[str],
) -> None:
    one = run(asks)
    await begin(one)
    saver = saver_of(one)

    async def looks() -> None:
        await one.probe("t1")

    async def reads(config: RunnableConfig) -> None:
        await saver.aget_tuple(config)

    await under_lease(store, at, looks)
    await under_lease(store, at, lambda: reads(CONFIG))
    assert len(readings) == 2

    async def reads_elsewhere() -> None:
        await looks()
        found = await saver.aget_tuple(
            {"configurable": {"thread_id": "t2", "checkpoint_ns": ""}}
        )
        assert found is None
        # What was kept is still there, and is given away once.
        await reads(CONFIG)
        await reads(CONFIG)

    await under_lease(store, at, reads_elsewhere)
    assert len(readings) == 5
