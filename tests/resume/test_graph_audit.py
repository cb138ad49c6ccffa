"""A graph that can start tools without a gate is refused when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel.remote import RemoteGraph
from langgraph_supervisor import create_supervisor  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType] - no types
from langgraph_swarm import create_handoff_tool, create_swarm  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType] - no types

from keyturn.agent import ApprovalMiddleware, gated_subagents, guarded
from keyturn.agent.scripted_model import scripted
from keyturn.cli.main import run
from keyturn.gateway.errors import GraphError
from keyturn.gateway.resume.graphs import as_graph, attached, described

ASK = cast("Any", create_agent)
RAN: list[str] = []
POLICY = """\
version: 1
defaults: {tier: approve, needs: U0ANA, channel: "#x"}
tools:
  task: {tier: auto}
  ask: {tier: auto}
  look_up: {tier: auto}
  wire: {tier: deny}
"""


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@tool
def wire(to: str) -> str:
    """Send money."""
    RAN.append(to)
    return "sent"


@tool
def look_up(query: str) -> str:
    """Look something up."""
    RAN.append(query)
    return "found"


def gate(agent: str = "billing") -> ApprovalMiddleware:
    return ApprovalMiddleware(agent)


def plain(name: str | None = None) -> Any:
    return ASK(scripted([]), [wire], name=name)


def gated_agent(name: str) -> Any:
    return ASK(scripted([]), [wire], middleware=[gate()], name=name)


def nodes(*named: tuple[str, Any]) -> Any:
    builder: Any = StateGraph(MessagesState)
    for name, node in named:
        builder.add_node(name, node)
        builder.add_edge(START, name)
    return builder.compile()


def asking(inner: Any) -> BaseTool:
    """Return a tool whose code asks another agent."""

    @tool
    def ask(question: str) -> str:
        """Ask a person."""
        return str(inner.invoke({"messages": [("user", question)]}))

    return ask


RESEARCHER = plain("researcher")


def _helper(question: str) -> object:
    return RESEARCHER.invoke({"messages": [("user", question)]})


@tool
def research(question: str) -> str:
    """Ask the researcher of this module."""
    return str(_helper(question))


def _same(state: MessagesState) -> MessagesState:
    return state


def node_with_an_agent(state: MessagesState) -> MessagesState:
    return cast("MessagesState", RESEARCHER.invoke(state))


class Asking(BaseTool):
    """A tool with an agent as attribute."""

    name: str = "ask"
    description: str = "Ask."
    inner: Any

    def _run(self, question: str) -> str:
        return str(self.inner.invoke({"messages": [("user", question)]}))


def gated(*tools: BaseTool, agent: str = "billing") -> Any:
    return ASK(scripted([]), list(tools), middleware=[gate(agent)])


def deep(**options: Any) -> Any:
    return cast("Any", create_deep_agent)(
        model=scripted([]), tools=[wire], middleware=[gate()], **options
    )


UNGATED: dict[str, tuple[Callable[[], Any], str]] = {
    "an agent without middleware": (plain, "'tools'"),
    "a plain tool node": (lambda: nodes(("act", ToolNode([wire]))), "'act'"),
    "an agent as a node": (
        lambda: nodes(("pay", gated(wire)), ("other", plain())),
        "'other > tools'",
    ),
    "an agent in a node's function": (
        lambda: nodes(("ask", node_with_an_agent)),
        "'ask > researcher > tools'",
    ),
    "an agent in a tool": (
        lambda: gated(asking(plain("inner"))),
        "'tools > ask > inner > tools'",
    ),
    "an agent in a helper of a tool": (
        lambda: gated(research),
        "'tools > research > researcher > tools'",
    ),
    "an agent held by a tool": (
        lambda: gated(Asking(inner=plain())),
        "'tools > ask > tools'",
    ),
    "three agents deep": (
        lambda: gated(asking(gated(asking(plain()), agent="middle"))),
        "'tools > ask > tools > ask > tools'",
    ),
    "deepagents' own subagent": (
        deep,
        "'tools > task > general-purpose > tools'",
    ),
    "a listed subagent": (
        lambda: deep(
            subagents=[
                *gated_subagents(agent="billing"),
                {"name": "payer", "description": "Pays.", "system_prompt": "Pay."},
            ]
        ),
        "'tools > task > payer > tools'",
    ),
}


@pytest.mark.parametrize("shape", UNGATED)
async def test_an_ungated_tool_is_refused_with_its_place(shape: str) -> None:
    make, place = UNGATED[shape]

    with pytest.raises(GraphError, match="can start tools that no gate clears") as told:
        await as_graph(make(), "billing.py:graph")

    assert "'wire'" in str(told.value)
    assert f"in {place}" in str(told.value)
    assert "ApprovalMiddleware" in str(told.value)


class Wrapping(ApprovalMiddleware):
    """A gate that the project does not know."""


GATED: dict[str, Callable[[], Any]] = {
    "a gated agent": lambda: gated(wire),
    "a gate of somebody's own": lambda: ASK(
        scripted([]), [wire], middleware=[Wrapping("billing")]
    ),
    "a gated agent as a node": lambda: nodes(("pay", gated(wire))),
    "a gated agent in a tool": lambda: gated(asking(gated(wire, agent="inner"))),
    "guarded tools": lambda: nodes(("act", ToolNode([guarded(wire)]))),
    "a node that only computes": lambda: nodes(("compute", _same)),
    "gated subagents": lambda: deep(subagents=gated_subagents(agent="billing")),
}


@pytest.mark.parametrize("shape", GATED)
async def test_a_graph_whose_tools_are_gated_is_taken(shape: str) -> None:
    graph = GATED[shape]()

    assert await as_graph(graph, "billing.py:graph") is graph


async def test_a_named_exception_is_taken_and_another_tool_is_not() -> None:
    graph = ASK(scripted([]), [wire, look_up])

    with pytest.raises(GraphError) as told:
        await as_graph(graph, "billing.py:graph", ["look_up"])

    assert await as_graph(graph, "billing.py:graph", ["look_up", "wire"]) is graph
    assert "look_up" not in str(told.value)


def test_people_read_of_each_tool_who_clears_it_and_what_cannot_be_seen() -> None:
    graph = nodes(
        ("pay", gated(wire, look_up)),
        ("act", ToolNode([guarded(research)])),
        ("other", node_with_an_agent),
    )

    def is_free(agent: str, tool: str) -> bool:
        return (agent, tool) == ("billing", "look_up")

    text = described(graph, ["wire"], is_free)

    assert text == (
        "gated: wire (pay > tools); "
        "free by policy unless a rule raises it: look_up (pay > tools); "
        "safe without a gate: research; "
        "ungated as the settings say: wire (act > research > researcher > tools); "
        "cannot be looked into, so what runs there is unknown: other"
    )


async def research_elsewhere(state: MessagesState) -> MessagesState:
    return cast("MessagesState", await REMOTE.ainvoke(cast("Any", state)))


REMOTE = RemoteGraph("research", url="http://127.0.0.1:9")


@pytest.mark.parametrize("part", [REMOTE, research_elsewhere])
async def test_a_graph_on_another_server_loads_and_is_named(part: object) -> None:
    graph = nodes(("pay", gated(wire)), ("research", part))

    loaded = attached(await as_graph(graph, "billing.py:graph"), InMemorySaver())

    text = described(loaded, [])
    assert "gated: wire (pay > tools)" in text
    assert "cannot be looked into, so what runs there is unknown: research" in text


@pytest.mark.parametrize("library", ["swarm", "supervisor"])
async def test_a_tool_that_hands_over_needs_no_gate(library: str) -> None:
    if library == "swarm":
        to_b = cast("Any", create_handoff_tool)(agent_name="b")
        graph: Any = cast("Any", create_swarm)(
            [ASK(scripted([]), [to_b], name="a"), gated_agent("b")],
            default_active_agent="a",
        ).compile()
    else:
        graph = cast("Any", create_supervisor)(
            [gated_agent("b")], model=scripted([])
        ).compile()

    assert await as_graph(graph, "billing.py:graph") is graph
    text = described(graph, [])
    assert "safe without a gate: transfer_to_b" in text
    assert "gated: wire" in text


AGENT = """\
from tests.resume.test_graph_audit import gated, plain, wire, look_up

graph = gated(wire, look_up)
bare = plain()
"""


def test_the_doctor_lists_the_tools_of_each_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "policy.yml").write_text(POLICY)
    (tmp_path / "keyturn.yml").write_text(
        "agents:\n"
        "  billing: {graph: 'agent.py:graph'}\n"
        "  bare: {graph: 'agent.py:bare'}\n"
        "  known: {graph: 'agent.py:bare', ungated: [wire, nope, builtin]}\n"
    )

    run(
        ["--config", str(tmp_path / "keyturn.yml"), "doctor"],
        {"KEYTURN_REDIS_URL": "redis://127.0.0.1:1/0"},
    )

    lines = {
        line.partition(": ")[0]: line for line in capsys.readouterr().out.splitlines()
    }
    free = "free by policy unless a rule raises it: look_up"
    assert lines["✔ agent billing"].endswith(f"gated: wire; {free}")
    assert "can start tools that no gate clears: 'wire'" in lines["✖ agent bare"]
    assert lines["✔ agent known"].endswith("ungated as the settings say: wire")
    absent = "'ungated' names 'nope', and this agent has no such tool."
    assert lines["· agent known"].endswith(absent)
    assert "· agent billing" not in lines
