"""A pause that is found again is told as LangGraph tells it, and nothing else is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from twokey.gateway.resume import known_pauses
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.fenced_saver import FencedSaver
from twokey.gateway.resume.graphs import Graph, attached
from twokey.gateway.resume.kept_readings import keeping
from twokey.gateway.resume.known_pauses import KnownPauses
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.resume.runner import ThreadState

Runners = Callable[..., LangGraphLocal]


def joined(before: list[str], new: list[str]) -> list[str]:
    return [*before, *new]


class State(TypedDict):
    """What the nodes said."""

    said: Annotated[list[str], joined]


def asks(state: State) -> State:
    return {"said": [str(interrupt("ask"))]}


def asks_too(state: State) -> State:
    return {"said": [str(interrupt("other"))]}


def says(state: State) -> State:
    return {"said": ["done"]}


def dies(state: State) -> State:
    raise RuntimeError("its process died")


def graph(*nodes: Callable[[State], State]) -> Graph:
    """Return a graph that runs all nodes at once."""
    made = cast("Any", StateGraph(State))
    for node in nodes:
        made.add_node(node)
        made.add_edge(START, node.__name__)
    return cast("Graph", made.compile())


@pytest.fixture
async def run(tmp_path: Path) -> AsyncGenerator[Runners]:
    """Give what makes a runner of nodes, with checkpoints in SQLite."""
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        yield lambda *nodes: LangGraphLocal(attached(graph(*nodes), saver))


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each time that LangGraph works out where a thread stands."""
    made: list[str] = []
    plain = cast("Any", Pregel).aget_state

    async def noted(self: Any, config: Any, **options: Any) -> Any:
        made.append(config["configurable"]["thread_id"])
        return await plain(self, config, **options)

    monkeypatch.setattr(Pregel, "aget_state", noted)
    return made


async def begin(one: LangGraphLocal, thread: str = "t1") -> None:
    await one.give(thread, {"said": ["begun"]}, key="k")


async def answer(one: LangGraphLocal, *, number: int = 0) -> None:
    asked = (await one.probe("t1")).pending[number]
    await one.resume("t1", {asked.id: cast("Any", "yes")}, key="k2")


async def told_by_another(run: Runners, *nodes: Any) -> ThreadState:
    """Return where the thread stands by a runner that has never seen it."""
    return await run(*nodes).probe("t1")


async def test_a_thread_that_waits_as_before_is_not_worked_out_again(
    run: Runners, worked_out: list[str]
) -> None:
    one = run(asks, asks_too)
    await begin(one)

    first = await one.probe("t1")
    again = await one.probe("t1")

    assert len(worked_out) == 1
    assert again == first
    assert {one.value for one in again.pending} == {"ask", "other"}
    assert again.taken == "k"


async def test_what_another_process_did_since_is_seen(run: Runners) -> None:
    one, other = run(asks, asks_too), run(asks, asks_too)
    await begin(one)
    await one.probe("t1")

    await answer(other)
    half = await one.probe("t1")
    assert len(half.pending) == 1
    assert half == await told_by_another(run, asks, asks_too)

    await answer(other)
    assert (await one.probe("t1")).is_finished


async def test_a_new_turn_that_asks_the_same_is_another_pause(run: Runners) -> None:
    one, other = run(asks), run(asks)
    await begin(one)
    before = await one.probe("t1")

    await answer(other)
    await begin(other)
    after = await one.probe("t1")

    assert after.checkpoint != before.checkpoint
    assert after == await told_by_another(run, asks)


@pytest.mark.parametrize("beside", [says, dies])
async def test_results_and_failures_beside_a_question_are_worked_out(
    run: Runners, worked_out: list[str], beside: Any
) -> None:
    one = run(asks, beside)
    with suppress(RuntimeError):
        await begin(one)

    states = [await one.probe("t1") for _ in range(3)]

    assert len(worked_out) == 3
    assert all(state == states[0] for state in states)
    assert states[0].is_cut_off is (beside is dies)


async def test_a_thread_that_is_deleted_does_not_wait(run: Runners) -> None:
    one = run(asks)
    await begin(one)
    await one.probe("t1")

    await run(asks).delete("t1")

    assert (await one.probe("t1")).exists is False


async def test_any_checkpointer_may_keep_the_thread(worked_out: list[str]) -> None:
    one = LangGraphLocal(attached(graph(asks), InMemorySaver()))
    await begin(one)

    assert await one.probe("t1") == await one.probe("t1")
    assert len(worked_out) == 1


async def test_a_pause_counts_for_its_checkpoint_and_its_tasks_only(
    run: Runners,
) -> None:
    one, kept = run(asks), KnownPauses()
    await begin(one)
    state = await one.probe("t1")
    saver = cast("FencedSaver", cast("Any", one)._graph.checkpointer)
    config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}
    with keeping() as reading:
        await saver.aget_tuple(config)
    found = reading.found
    assert found is not None

    kept.keep("t1", found, state)

    assert kept.again("t1", found) == state
    elsewhere = cast("Any", {**found.checkpoint, "id": "another"})
    assert kept.again("t1", found._replace(checkpoint=elsewhere)) is None
    [(_, channel, value)] = found.pending_writes or []
    for writes in (
        [],
        [("other task", channel, value)],
        [("other task", channel, value), *(found.pending_writes or [])],
        [*(found.pending_writes or []), ("task", "said", ["done"])],
        [("task", channel, "no question")],
        [("task", channel, ["no question"])],
    ):
        assert kept.again("t1", found._replace(pending_writes=writes)) is None
    assert kept.again("t1", None) is None
    assert kept.again("t2", found) is None
    # A pause whose questions are not those beside the checkpoint is not kept.
    kept.keep("t1", found, replace(state, pending=()))
    assert "t1" not in kept


async def test_the_oldest_pause_is_forgotten_first(
    run: Runners, monkeypatch: pytest.MonkeyPatch, worked_out: list[str]
) -> None:
    monkeypatch.setattr(known_pauses, "MOST_THREADS", 2)
    one = run(asks)
    for thread in ("t1", "t2", "t3"):
        await begin(one, thread)
        await one.probe(thread)
    worked_out.clear()

    for thread in ("t3", "t2", "t1"):
        await one.probe(thread)

    assert worked_out == ["t1"]
