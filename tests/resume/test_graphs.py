"""A setting names a graph; an unusable one is explained in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain.agents.structured_output import ToolStrategy
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel
from typing_extensions import TypedDict

from keyturn.agent import ApprovalMiddleware
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.resume.graphs import (
    allowed_types,
    attached,
    load_graph,
    strict_serializer,
)
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
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


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("agents/shop.py", "names no graph"),
        ("agents/shops.py:graph", "names. Correct the name; a relative one starts"),
        ("agents/shop.py:grahp", "the module has no 'grahp'"),
        ("agents/shop.py:number", "is of type int, not a graph"),
        ("agents/shop.py:needy", "cannot be called without arguments"),
        ("agents/shop.py:broken", "raised RuntimeError: no database. Call it on"),
        ("agents/shop.py:paused", "interrupt_before"),
        ("no.such.module:graph", "raised ModuleNotFoundError"),
    ],
)
async def test_a_bad_graph_is_one_sentence(folder: Path, ref: str, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        await load_graph(ref, folder)


@pytest.mark.parametrize("body", ["import nothing_here", "raise SystemExit(2)", "("])
async def test_a_file_that_fails_to_import_says_why(tmp_path: Path, body: str) -> None:
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


POLICY = load_policy("version: 1\ndefaults: {needs: U0ANA}\n", "policy.yml")


class Line(BaseModel):
    """A part of an answer."""

    amount: int


class Invoice(BaseModel):
    """An answer of a pydantic type."""

    lines: list[Line]


@dataclass
class Note:
    """An answer that is a dataclass."""

    text: str


class Row(TypedDict):
    """An answer that is a dictionary."""

    text: str


JSON = {
    "title": "Row",
    "description": "A row.",
    "type": "object",
    "properties": {"text": {"type": "string"}},
}
INVOICE = Invoice(lines=[Line(amount=7)])
SHAPES: dict[str, tuple[Any, str, dict[str, Any], object]] = {
    "a model": (ToolStrategy(Invoice), "Invoice", INVOICE.model_dump(), INVOICE),
    "a type by itself": (Invoice, "Invoice", INVOICE.model_dump(), INVOICE),
    "a dataclass": (ToolStrategy(Note), "Note", {"text": "x"}, Note("x")),
    "one of two": (ToolStrategy(Invoice | Note), "Note", {"text": "x"}, Note("x")),
    "a typed dictionary": (ToolStrategy(Row), "Row", {"text": "x"}, {"text": "x"}),
    "a schema": (ToolStrategy(JSON), "Row", {"text": "x"}, {"text": "x"}),
}


def agent(shape: str) -> Any:
    given, name, args, _ = SHAPES[shape]
    return cast("Any", create_agent)(
        scripted([calling((name, args, "c1"))]),
        [],
        middleware=[ApprovalMiddleware("shop")],
        response_format=given,
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_structured_answer_keeps_its_type(
    shape: str, store: Store, tmp_path: Path
) -> None:
    graph = agent(shape)

    async with Keyturn(policy=POLICY, url=store.conn.url, data_dir=tmp_path) as tk:
        end = await tk.run(
            graph,
            {"messages": [("user", "go")]},
            thread_id="t",
            agent="shop",
            timeout_s=60,
        )

    answer = SHAPES[shape][3]
    assert end["structured_response"] == answer
    assert type(end["structured_response"]) is type(answer)
