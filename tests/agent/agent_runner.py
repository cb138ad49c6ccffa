"""Build real agents around a scripted model, and run them the two ways they can run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads name generics without parameters
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, StateSnapshot
from typing_extensions import TypedDict

from keyturn.agent import (
    ApprovalMiddleware,
    arequire_approval,
    grant,
    guarded,
    require_approval,
)
from keyturn.agent.scripted_model import ScriptedModel, calling, scripted
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.records import Tier
from tests.agent.fake_gateway import FakeGateway

FREE = {"look_up": Tier.AUTO}
CONFIG: RunnableConfig = {"configurable": {"thread_id": "thread-1"}}
STRICT: RunnableConfig = {
    "configurable": {"thread_id": "thread-1", "__pregel_strict_resume": True}
}


def pay(amount: float = 10, to: str = "ada", call_id: str = "c1") -> AIMessage:
    """Return a message that asks for one payment."""
    return calling(("pay", {"amount": amount, "to": to}, call_id))


class Killed(BaseException):
    """Stands for a killed process: no handler catches it."""


class Effects:
    """What really happened, and the tools that make it happen."""

    def __init__(self) -> None:
        self.paid: list[tuple[float, str]] = []
        self.keys: list[str] = []
        self.looked: list[str] = []
        self.inside: Callable[[], object] = lambda: None

    def tools(self, *, is_guarded: bool = True) -> list[BaseTool]:
        def pay(amount: float, to: str) -> str:
            """Make a payment."""
            self.keys.append(grant().idempotency_key if is_guarded else "")
            self.paid.append((amount, to))
            self.inside()
            return f"paid {amount} to {to}"

        def look_up(query: str) -> str:
            """Look something up."""
            self.looked.append(query)
            return f"found {query}"

        plain = [_tool_of(pay), _tool_of(look_up)]
        return [guarded(each) for each in plain] if is_guarded else plain


_MADE: dict[str, BaseTool] = {}


def _tool_of(function: Callable[..., str]) -> BaseTool:
    """Make a tool of a function; its schema, which takes milliseconds, once.

    Functions of one name take the same arguments here.
    """
    name = function.__name__
    if name not in _MADE:
        _MADE[name] = tool(function)
    return _MADE[name].model_copy(update={"func": function})


def build(
    gateway: FakeGateway | None,
    tools: Sequence[BaseTool],
    *replies: AIMessage,
    saver: Any = None,
    before: Sequence[AgentMiddleware[Any, Any, Any]] = (),
    after: Sequence[AgentMiddleware[Any, Any, Any]] = (),
    model: ScriptedModel | None = None,
    **options: Any,
) -> Any:
    """Return an agent that plays these replies; ``saver`` False keeps no thread."""
    middleware = ApprovalMiddleware("support", gateway=gateway, **options)
    return create_agent(
        model or scripted(list(replies)),
        list(tools),
        middleware=[*before, middleware, *after],
        checkpointer=InMemorySaver() if saver is None else saver,
    )


async def paused(
    runner: Runner, saver: Any, *replies: AIMessage
) -> tuple[FakeGateway, Any]:
    """Return a gateway, and an agent whose payment waits in it for people."""
    gateway = FakeGateway(FREE)
    graph = build(gateway, runner.tools(), *(replies or [pay()]), saver=saver)
    await runner.say(graph, "pay")
    return gateway, graph


def agent_with(
    middleware: AgentMiddleware[Any, Any, Any],
    effects: Effects,
    *replies: AIMessage,
    saver: Any = None,
    **options: Any,
) -> Any:
    """Return an agent that plays these replies behind this middleware alone."""
    return create_agent(
        scripted(list(replies)),
        effects.tools(is_guarded=False),
        middleware=[middleware],
        checkpointer=saver or InMemorySaver(),
        **options,
    )


class Runner(Effects):
    """Run a graph by `invoke` in a separate thread, or by `ainvoke`."""

    def __init__(self, *, is_async: bool) -> None:
        super().__init__()
        self.is_async = is_async
        self.memory = InMemorySaver()

    async def run(
        self, graph: Any, given: Any, config: RunnableConfig = CONFIG
    ) -> dict[str, Any]:
        options = {"durability": "sync"} if config else {}
        if self.is_async:
            result = await graph.ainvoke(given, config, **options)
        else:
            result = await asyncio.to_thread(graph.invoke, given, config, **options)
        values: dict[str, Any] = result
        return values

    async def say(
        self, graph: Any, text: str, config: RunnableConfig = CONFIG
    ) -> dict[str, Any]:
        return await self.run(graph, {"messages": [("user", text)]}, config)

    async def state(self, graph: Any, config: RunnableConfig = CONFIG) -> StateSnapshot:
        if self.is_async:
            snapshot: StateSnapshot = await graph.aget_state(config)
        else:
            snapshot = await asyncio.to_thread(graph.get_state, config)
        return snapshot

    async def answers(
        self, graph: Any, gateway: FakeGateway, config: RunnableConfig = CONFIG
    ) -> dict[str, Any]:
        """Return what the resume worker would send: one answer per decided item."""
        snapshot = await self.state(graph, config)
        return {
            pause.id: gateway.answer(pause.value["item_id"]).model_dump(mode="json")
            for pause in snapshot.interrupts
            if not gateway.items[pause.value["item_id"]].is_pending
        }

    async def resume(
        self, graph: Any, gateway: FakeGateway, config: RunnableConfig = STRICT
    ) -> dict[str, Any]:
        """Send the answers of all decided items at once, strictly."""
        answers = await self.answers(graph, gateway, config)
        return await self.run(graph, Command(resume=answers), config)


def delegating(
    runner: Runner, inners: dict[str, Any], config: RunnableConfig | None = None
) -> BaseTool:
    """Return a tool in which one of these agents works, perhaps in its own thread."""

    async def adelegate(job: str) -> str:
        """Call another agent."""
        end = await inners[job].ainvoke({"messages": [("user", job)]}, config)
        return str(end["messages"][-1].text)

    def delegate(job: str) -> str:
        """Call another agent."""
        end = inners[job].invoke({"messages": [("user", job)]}, config)
        return str(end["messages"][-1].text)

    return tool("delegate")(adelegate) if runner.is_async else tool(delegate)


class Step(TypedDict):
    """The outcome of the one step of a graph."""

    outcome: Any


GO = Step(outcome=None)
"""The input of a graph with one step."""


def step_graph(
    runner: Runner, saver: Any, tool_name: str, args: Any, **options: Any
) -> Any:
    """Return a graph of one plain node that asks for one step."""

    def node(_: Step) -> Step:
        return Step(outcome=require_approval(tool_name, args, **options))

    async def anode(_: Step) -> Step:
        return Step(outcome=await arequire_approval(tool_name, args, **options))

    builder: Any = StateGraph(Step)
    builder.add_node("step", anode if runner.is_async else node)
    builder.add_edge(START, "step")
    return builder.compile(checkpointer=saver)


def results(state: dict[str, Any]) -> list[ToolMessage]:
    """Return the tool messages of a finished run."""
    return [m for m in state["messages"] if isinstance(m, ToolMessage)]


def by_call(state: dict[str, Any]) -> dict[str, ToolMessage]:
    """Return the tool messages of a finished run by call id."""
    return {message.tool_call_id: message for message in results(state)}


def item_of(gateway: FakeGateway, call_id: str) -> Item:
    """Return the item of a call."""
    (item,) = [i for i in gateway.items.values() if i.ctx.tool_call_id == call_id]
    return item
