"""All ways in which agents share a run, and the messages that each agent reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import add
from typing import Annotated, Any, cast

from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - its types are partial
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from langgraph_supervisor import create_supervisor  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType] - no types
from langgraph_swarm import create_handoff_tool, create_swarm  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType] - no types
from typing_extensions import TypedDict

from keyturn.agent import ApprovalMiddleware, Approved, arequire_approval, guarded
from tests.conformance.scenes import GO, Planned, Scene

Build = Callable[[Scene], Any]
BRANCHES = 10


def said(turn: int) -> Any:
    """Return a person's message as an input."""
    return {"messages": [{"role": "user", "content": f"{GO} {turn}"}]}


@dataclass(frozen=True)
class Topology:
    """A way to share a run, and the expectations.

    Attributes:
        build: makes the graph, with models that the scene keeps.
        payments: number of payments that its first turn requests, in sequence or at
            once.
        first: how many of them are pending at the same time at first.
        hears: labels of the models that read every edit of earlier turns and of their
            conversation by the end of a turn.
        input: makes the input of a turn.
        steps: it has no models: the final state contains the outcomes.
    """

    build: Build
    payments: int = 1
    first: int = 1
    hears: tuple[str, ...] = ()
    input: Callable[[int], Any] = said
    steps: bool = False
    drops: frozenset[str] = field(default_factory=frozenset[str])


def agent(scene: Scene, model: Planned, *tools: BaseTool, **options: Any) -> Any:
    """Make a gated agent that can pay."""
    return create_agent(
        model,
        [scene.pay_tool(), *tools],
        middleware=[ApprovalMiddleware(model.label)],
        name=model.label,
        **options,
    )


def alone(scene: Scene) -> Any:
    """One agent, its graph built for this thread."""
    return agent(scene, scene.model("shop", [[scene.payment("p1")], "shop is done"]))


def supervised(mode: str) -> Build:
    """Build a supervisor that delegates to a payer and gets the result."""

    def build(scene: Scene) -> Any:
        payer = scene.model("payer", [[scene.payment("p1")], "payer is done"])
        lead = scene.model(
            "lead", [[("transfer_to_payer", {}, "t1")], "everything is done"]
        )
        make = cast("Any", create_supervisor)
        agents = [agent(scene, payer)]
        return make(agents, model=lead, prompt="lead", output_mode=mode).compile()

    return build


def swarm(scene: Scene) -> Any:
    """Two agents; the first pays and hands over, the second pays too."""
    handover: Any = ("transfer_to_b", {}, "t1")
    a = scene.model("a", [[scene.payment("p1")], [handover], "a is done"])
    b = scene.model("b", [[scene.payment("p2")], "b is done"])
    to_a, to_b = (
        create_handoff_tool(agent_name="a"),
        create_handoff_tool(agent_name="b"),
    )
    agents = [agent(scene, a, to_b), agent(scene, b, to_a)]
    make = cast("Any", create_swarm)
    return make(agents, default_active_agent="a").compile()


def handoff_beside(scene: Scene) -> Any:
    """A payment and a handoff in one message: LangGraph drops the payment's result."""
    handover: Any = ("transfer_to_b", {}, "t1")
    a = scene.model("a", [[scene.payment("p1"), handover], "a is done"])
    b = scene.model("b", ["b is done"])
    to_a, to_b = (
        create_handoff_tool(agent_name="a"),
        create_handoff_tool(agent_name="b"),
    )
    agents = [agent(scene, a, guarded(to_b)), agent(scene, b, guarded(to_a))]
    make = cast("Any", create_swarm)
    return make(agents, default_active_agent="a").compile()


def nodes(**options: Any) -> Build:
    """Build agents as nodes of one graph, the first of them visited twice."""

    def build(scene: Scene) -> Any:
        a = scene.model(
            "a",
            [
                [scene.payment("p1")],
                "a is done once",
                [scene.payment("p2", 6)],
                "a is done",
            ],
        )
        b = scene.model("b", ["b is done"])

        def after_b(state: MessagesState) -> str:
            words = [
                one.text for one in state["messages"] if isinstance(one, AIMessage)
            ]
            is_second = "a has a second turn" in words
            return END if is_second or "a is done" in words else "a"

        builder: Any = StateGraph(MessagesState)
        builder.add_node("a", agent(scene, a, **options))
        builder.add_node("b", agent(scene, b, **options))
        builder.add_edge(START, "a")
        builder.add_edge("a", "b")
        builder.add_conditional_edges("b", after_b)
        return builder.compile()

    return build


def as_tool(graph: Any, name: str) -> BaseTool:
    """Return a tool in which an agent works."""

    async def work(task: str) -> str:
        """Call another agent."""
        state = await graph.ainvoke({"messages": [("user", f"{GO} {task}")]})
        return str(state["messages"][-1].text)

    return tool(name)(work)


def levels(scene: Scene) -> Any:
    """Agents as tools, three deep."""
    low = agent(scene, scene.model("x3", [[scene.payment("p1")], "x3 is done"]))
    for depth in (2, 1, 0):
        label = f"x{depth}" if depth else "shop"
        down: Any = (f"level_{depth + 1}", {"task": "on"}, f"d{depth}")
        model = scene.model(label, [[down], f"{label} is done"])
        low = agent(scene, model, as_tool(low, f"level_{depth + 1}"))
    return low


class Todo(TypedDict):
    """Orders, and their states."""

    turn: int
    done: Annotated[list[str], add]


class Branch(TypedDict):
    """One order."""

    number: int
    turn: int


def branches(scene: Scene) -> Any:
    """Ten agents at the same time, each with a payment under the same call id."""
    agents = [
        agent(
            scene,
            scene.model(
                f"w{number}", [[_same_id(scene, number)], f"w{number} is done"]
            ),
        )
        for number in range(BRANCHES)
    ]

    async def run(state: Branch) -> dict[str, list[str]]:
        turns = [("user", f"{GO} {turn}") for turn in range(state["turn"])]
        end = await agents[state["number"]].ainvoke({"messages": turns})
        return {"done": [end["messages"][-1].text]}

    def fan_out(state: Todo) -> list[Send]:
        return [
            Send("run", {"number": number, "turn": state["turn"]})
            for number in range(BRANCHES)
        ]

    builder: Any = StateGraph(Todo)
    builder.add_node("run", run)
    builder.add_conditional_edges(START, fan_out, ["run"])
    builder.add_edge("run", END)
    return builder.compile()


def _same_id(scene: Scene, number: int) -> tuple[str, Any, str]:
    name, args, _ = scene.payment(f"p{number}")
    return (name, args, "same")


async def step(scene: Scene, number: int) -> list[str]:
    """Request a payment as a plain step; return its result."""

    async def pay(order: str, amount: float) -> str:
        return await scene.do_pay(order, amount)

    outcome = await arequire_approval(
        scene.tool_name,
        {"order": scene.order(f"p{number}"), "amount": 8},
        run=pay,
        agent="shop",
    )
    if isinstance(outcome, Approved):
        return ["approved", outcome.result]
    return [getattr(outcome, "kind", "unsure"), outcome.message]


def functional(scene: Scene) -> Any:
    """The functional API: two steps in one body, without keys."""

    @entrypoint()
    async def flow(turn: int) -> list[list[str]]:
        if turn > 1:
            return []
        return [await step(scene, 1), await step(scene, 2)]

    return cast("Any", flow)


class Steps(TypedDict):
    """The results of steps."""

    turn: int
    outcomes: Annotated[list[list[str]], add]


def steps(scene: Scene) -> Any:
    """Plain nodes, the second of which asks twice."""

    async def one(state: Steps) -> dict[str, Any]:
        return {"outcomes": [await step(scene, 1)]} if state["turn"] == 1 else {}

    async def two(state: Steps) -> dict[str, Any]:
        if state["turn"] > 1:
            return {}
        return {"outcomes": [await step(scene, 2), await step(scene, 3)]}

    builder: Any = StateGraph(Steps)
    builder.add_node("one", one)
    builder.add_node("two", two)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    return builder.compile()


def deep(scene: Scene) -> Any:
    """deepagents: a listed subagent and the general-purpose one, both gated."""
    tasks: list[Any] = [
        ("task", {"description": f"{GO} on", "subagent_type": name}, f"t-{name}")
        for name in ("payer", "general-purpose")
    ]
    payer = scene.model("payer", [[scene.payment("p1")], "payer is done"])
    other = scene.model("general", [[scene.payment("p2")], "general is done"])
    subagents: list[Any] = [
        {
            "name": name,
            "description": "pays",
            "system_prompt": "pay",
            "tools": [scene.pay_tool()],
            "middleware": [ApprovalMiddleware(model.label)],
            "model": model,
        }
        for name, model in (("payer", payer), ("general-purpose", other))
    ]
    make = cast("Any", create_deep_agent)
    return make(
        model=scene.model("shop", [tasks, "shop is done"]),
        tools=[],
        middleware=[ApprovalMiddleware("shop")],
        subagents=subagents,
    )


TOPOLOGIES: dict[str, Topology] = {
    "alone": Topology(alone, hears=("shop",)),
    "supervisor": Topology(supervised("last_message"), hears=("payer",)),
    "supervisor_full": Topology(supervised("full_history"), hears=("payer",)),
    "swarm": Topology(swarm, payments=2, hears=("b",)),
    "handoff": Topology(handoff_beside, hears=("b",)),
    "nodes": Topology(nodes(), payments=2, hears=("a", "b")),
    "nodes_kept": Topology(nodes(checkpointer=True), payments=2, hears=("a", "b")),
    "levels": Topology(levels, hears=("shop", "x1", "x2", "x3")),
    "branches": Topology(
        branches,
        payments=BRANCHES,
        first=BRANCHES,
        input=lambda turn: {"turn": turn, "done": []},
    ),
    "functional": Topology(functional, payments=2, input=lambda turn: turn, steps=True),
    "steps": Topology(
        steps,
        payments=3,
        input=lambda turn: {"turn": turn, "outcomes": []},
        steps=True,
    ),
    "deep": Topology(deep, payments=2, first=2, hears=("shop",)),
}
