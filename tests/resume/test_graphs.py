"""A setting names a graph; an unusable one is explained in one sentence."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent import HumanInTheLoopMiddleware as Ours
from keyturn.gateway.errors import GraphError
from keyturn.gateway.resume.graphs import (
    allowed_types,
    as_graph,
    attached,
    load_graph,
    strict_serializer,
)
from keyturn.gateway.resume.langgraph_local import Runner
from tests.resume import sample_tools

FILE = """
from typing import TypedDict
from langgraph.graph import StateGraph

class State(TypedDict):
    n: int

builder = StateGraph(State)
builder.add_node("one", lambda state: {"n": state["n"] + 1})
builder.set_entry_point("one")
graph = builder.compile()
paused = builder.compile(interrupt_before=["one"])
number = 7

def factory():
    return builder

async def slow_factory():
    return graph

def needy(settings):
    return graph

def broken():
    raise RuntimeError("no database.")
"""


class Undeclared(BaseModel):
    """A type that no state declares."""

    name: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with a graph file."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "shop.py").write_text(FILE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["graph", "builder", "factory", "slow_factory"])
async def test_a_graph_is_found_in_every_form(folder: Path, name: str) -> None:
    graph = await load_graph(f"agents/shop.py:{name}", folder)

    runner = Runner(attached(graph, InMemorySaver()))
    await runner.give("t", {"n": 1}, key="k")
    assert await runner.values("t") == {"n": 2}
    assert (await runner.probe("t")).taken == "k"


async def test_ctrl_c_during_an_import_stays_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("raise KeyboardInterrupt", encoding="utf-8")

    with pytest.raises(KeyboardInterrupt):
        await load_graph("agent.py:graph", tmp_path)


async def test_a_module_is_found_by_its_name() -> None:
    assert await load_graph("tests.resume.sample_tools:graph", Path.cwd())


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("agents/shop.py", "names no graph"),
        ("agents/shops.py:graph", "names. Correct the name; a relative one starts"),
        ("agents/shop.py:grahp", "did you mean 'graph'?"),
        ("agents/shop.py:number", "is of type int, not a graph"),
        ("agents/shop.py:needy", "cannot be called without arguments"),
        ("agents/shop.py:broken", "raised RuntimeError: no database. Call it on"),
        ("agents/shop.py:paused", "interrupt_before"),
        ("no.such.module:graph", "raised ModuleNotFoundError"),
    ],
)
async def test_a_graph_that_cannot_be_used_is_one_sentence(
    folder: Path, ref: str, says: str
) -> None:
    with pytest.raises(GraphError, match=says):
        await load_graph(ref, folder)


@pytest.mark.parametrize("body", ["import nothing_here", "raise SystemExit(2)", "("])
async def test_a_file_that_does_not_import_says_why_and_can_be_mended(
    tmp_path: Path, body: str
) -> None:
    # A module is known by its path, and pytest may use the one of a test before again.
    folder = Path(mkdtemp(dir=tmp_path))
    file = folder / "agent.py"
    file.write_text(body, encoding="utf-8")
    with pytest.raises(GraphError, match=r"Importing 'agent\.py:graph' raised"):
        await load_graph("agent.py:graph", folder)

    file.write_text(FILE, encoding="utf-8")

    assert await load_graph("agent.py:graph", folder)


def test_only_types_that_the_state_declares_are_built_from_a_checkpoint() -> None:
    allowed = allowed_types(sample_tools.graph())
    assert ("keyturn.agent.messages", "EditMessage") in allowed

    strict = strict_serializer().with_msgpack_allowlist(allowed)
    record = strict.dumps_typed(Undeclared(name="x"))

    assert not isinstance(strict.loads_typed(record), Undeclared)


async def test_two_middlewares_that_both_pause_are_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gated: dict[str, Any] = {"interrupt_on": {"refund": True}}
    ours, theirs = ApprovalMiddleware("shop"), HumanInTheLoopMiddleware(**gated)
    make = cast("Any", create_agent)
    for ref, middleware in (
        ("alone", [ours]),
        ("ours", [Ours(**gated)]),
        ("both", [theirs, ours]),
        ("both", [ours, theirs]),
    ):
        graph = make(
            sample_tools.obedient(),
            tools=[guarded(sample_tools.refund)],
            middleware=middleware,
        )
        await as_graph(graph, ref)

    (warned,) = (one for one in caplog.messages if "graph.asks_twice" in one)
    assert warned.startswith("graph.asks_twice graph=both: the graph has")
