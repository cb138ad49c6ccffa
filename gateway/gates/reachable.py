"""Analyse a graph statically: find its tools and their gates, and guard those tools.

The graph is read, not run. The analysis follows its nodes, graphs in nodes or in
references of their functions, and graphs in references of a tool's code, such as the
subagents inside deepagents' ``task`` tool. A graph that is created while a function
runs cannot be found here. So the result covers only the tools that are found; below a
gated agent `keyturn.agent.grants` stops all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain
from types import FunctionType, MethodType
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel
from langchain_core.runnables.base import RunnableBindingBase, RunnableSequence
from langchain_core.tools import BaseTool
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.pregel._utils import (
    get_function_nonlocals,  # pyright: ignore[reportUnknownVariableType] - partly typed
)
from langgraph.pregel.protocol import PregelProtocol

from keyturn.gateway.gates.gate import Gate, is_guarded

_LIBRARIES = frozenset(
    {"deepagents", "langchain", "langchain_core", "langgraph", "langsmith"}
)
_HANDOFFS = frozenset({"langgraph_supervisor", "langgraph_swarm"})
"""Packages whose tools only choose the next agent of the same graph."""


class Asks(Enum):
    """When LangChain's own middleware asks people about a tool."""

    NEVER = "never"
    SOMETIMES = "sometimes"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class ReachableTool:
    """A tool that a graph can start.

    Attributes:
        name: its name.
        place: the nodes, tools and agents on the path to it, outermost first.
        gate: the name of the gated agent that calls it; "" for none.
        is_safe: True if it is harmless without a gate: it refuses to run without a
            grant, or only hands over to another agent.
        asks: whether LangChain's own middleware asks people before it runs.
        is_builtin: it belongs to LangChain or deepagents.
    """

    name: str
    place: tuple[str, ...]
    gate: str
    is_safe: bool
    asks: Asks = Asks.NEVER
    is_builtin: bool = False

    @property
    def is_ungated(self) -> bool:
        """Return True if it can run without a cleared call."""
        return not self.gate and not self.is_safe


@dataclass(slots=True)
class Reachable:
    """Everything that a graph is found to start.

    Attributes:
        tools: the tools, each place once.
        known: those tools themselves.
        gated: the tool nodes behind a gate, each with its gate.
        unseen: places of functions, and of graphs on other servers, that cannot be
            analysed.
    """

    tools: list[ReachableTool] = field(default_factory=list[ReachableTool])
    known: list[BaseTool] = field(default_factory=list[BaseTool])
    gated: list[tuple[ToolNode, Gate]] = field(
        default_factory=list[tuple[ToolNode, Gate]]
    )
    unseen: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    # With the objects: otherwise Python could reuse the id of a collected object, such
    # as a temporary bound method, for an object that was not visited.
    _visited: dict[int, object] = field(default_factory=dict[int, object])

    def add_graph(self, graph: object, place: tuple[str, ...], gate: str = "") -> None:
        """Add the tools of a compiled graph; ``gate`` is around the whole graph."""
        if not self._is_new(graph):
            return
        nodes: Mapping[str, Any] = cast("Any", graph).nodes
        for name, node in nodes.items():
            for part in _parts(node.bound):
                self._add_part(part, (*place, name), gate)

    def guard_tools(self) -> None:
        """Require a grant for every tool behind a gate, for any caller there.

        A middleware around the gate gets the tool itself, and could run it instead of
        passing the call on. Outside of the gate the same tools run unchanged.
        """
        for node, gate in self.gated:
            tools = node.tools_by_name
            tools.update({name: gate.guard(tool) for name, tool in tools.items()})

    def _add_part(self, part: object, place: tuple[str, ...], gate: str) -> None:
        if isinstance(part, ToolNode):
            self._add_tools(part, place, gate)
            return
        functions = _functions(part)
        own = [one for one in functions if _is_users(one)]
        is_hook = any(isinstance(_owner(one), AgentMiddleware) for one in own)
        # Every agent with middleware has hooks; they are followed, but not listed as
        # unseen.
        if own and not is_hook:
            self._add_unseen(place)
        self._add_found(own if functions else [part], place, gate)

    def _add_tools(self, node: ToolNode, place: tuple[str, ...], gate: str) -> None:
        found = gate_of(node)
        own = found.agent if found else ""
        asks = asked_tools(node)
        if found:
            self.gated.append((node, found))
        for tool in node.tools_by_name.values():
            # Not below a gate: there `keyturn.agent.grants` stops every start without a
            # grant.
            is_handoff = not gate and _root(tool) in _HANDOFFS
            is_safe = is_guarded(tool) or is_handoff
            self.known.append(tool)
            # Listed at each place, but analysed once.
            self.tools.append(
                ReachableTool(
                    tool.name,
                    place,
                    own,
                    is_safe,
                    asks.get(tool.name, Asks.NEVER),
                    _root(tool) in _LIBRARIES,
                )
            )
            if self._is_new(tool):
                self._add_found(vars(tool).values(), (*place, tool.name), own or gate)

    def _add_found(
        self, values: Iterable[object], place: tuple[str, ...], gate: str
    ) -> None:
        """Add the graphs in these values and in references of these functions."""
        waiting = list(values)
        while waiting:
            value = waiting.pop(0)
            if isinstance(value, Pregel):
                inner = cast("object", value)
                self.add_graph(inner, _named(inner, place), gate)
            elif isinstance(value, PregelProtocol):
                self._add_unseen(place)
            elif isinstance(value, ToolNode):
                if self._is_new(value):
                    self._add_tools(value, place, gate)
            elif self._is_new(value):
                waiting.extend(_held(value))

    def _add_unseen(self, place: tuple[str, ...]) -> None:
        if place not in self.unseen:
            self.unseen.append(place)

    def _is_new(self, value: object) -> bool:
        """Return True if a value was not visited before; nothing is read twice."""
        if id(value) in self._visited:
            return False
        self._visited[id(value)] = value
        return True


def reachable(graph: object) -> Reachable:
    """Return the tools that a compiled graph can start."""
    found = Reachable()
    found.add_graph(graph, ())
    return found


def holds_tools(graph: object, name: str) -> bool:
    """Return True if a node of a graph runs tools."""
    node = cast("Any", graph).nodes.get(name)
    return node is not None and any(
        isinstance(it, ToolNode) for it in _parts(node.bound)
    )


def gate_of(node: ToolNode) -> Gate | None:
    """Return the middleware that gates a tool node; None for none."""
    return cast("Gate | None", middleware_behind(_handlers(node), Gate))


def asked_tools(node: ToolNode) -> dict[str, Asks]:
    """Return when LangChain's own middleware asks about the tools of a node.

    With ``when`` a function decides, so the tool may run unasked.
    """
    found: dict[str, Asks] = {}
    for one in every_middleware(_handlers(node), HumanInTheLoopMiddleware):
        for name, rule in cast("Any", one).interrupt_on.items():
            asks = Asks.ALWAYS if rule.get("when") is None else Asks.SOMETIMES
            found[name] = Asks.ALWAYS if found.get(name) is Asks.ALWAYS else asks
    return found


def _handlers(node: ToolNode) -> tuple[object, ...]:
    wrappers = cast("Any", node)
    return (wrappers._wrap_tool_call, wrappers._awrap_tool_call)  # noqa: SLF001 - it has no public name


def middleware_behind(handlers: Iterable[object], kind: type) -> object:
    """Return the first middleware of a kind behind handlers; None for none."""
    return next(every_middleware(handlers, kind), None)


def every_middleware(handlers: Iterable[object], kind: type) -> Iterator[object]:
    """Yield the middleware of a kind behind handlers; one may come twice.

    LangChain does not expose the middleware of a handler, so the handlers' closures are
    searched where possible.
    """
    waiting = list(handlers)
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        owner = _owner(value)
        for candidate in (owner, *_values(owner)):
            if isinstance(candidate, kind):
                yield candidate
        if id(value) not in seen and callable(value):
            seen.add(id(value))
            waiting.extend(closure_values(value))


def _parts(runnable: object) -> Iterator[object]:
    """Yield the runnables of a node."""
    if isinstance(runnable, RunnableSeq | RunnableSequence):
        steps = cast("Iterable[object]", cast("Any", runnable).steps)
    elif isinstance(runnable, RunnableParallel):
        steps = cast("Iterable[object]", cast("Any", runnable).steps__.values())
    elif isinstance(runnable, RunnableBindingBase):
        steps = (cast("Any", runnable).bound,)
    else:
        yield runnable
        return
    for step in steps:
        yield from _parts(step)


def _functions(part: object) -> list[Callable[..., Any]]:
    if not isinstance(part, RunnableCallable | RunnableLambda):
        return []
    made = cast("Any", part)
    found = (getattr(made, "func", None), getattr(made, "afunc", None))
    return [_unwrapped(one) for one in found if callable(one)]


def _unwrapped(function: Any) -> Callable[..., Any]:  # noqa: ANN401 - any callable
    """Return the user's function inside LangGraph's wrapper for its other mode."""
    while isinstance(function, partial):
        inner = [one for one in function.args if callable(one)]
        function = inner[0] if inner else function.func
    return cast("Callable[..., Any]", function)


def _held(value: object) -> Iterable[object]:
    """Return the values reachable from this one that may contain a graph."""
    if isinstance(value, FunctionType):
        # The globals of a library's function lead through the whole library; only its
        # closure can contain a user's object.
        return (
            get_function_nonlocals(value) if _is_users(value) else closure_values(value)
        )
    if isinstance(value, MethodType):
        return (value.__func__, value.__self__, *_values(value.__self__))
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    return _contained(value)


def _contained(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).values()
    if isinstance(value, list | tuple | set | frozenset):
        return cast("Iterable[object]", value)
    if isinstance(value, Runnable) and not isinstance(value, BaseTool):
        parts = [one for one in _parts(cast("object", value)) if one is not value]
        return [*parts, *_functions(cast("object", value))]
    return ()


def _owner(method: object) -> object:
    return getattr(method, "__self__", None)


def _values(owner: object) -> list[object]:
    return list(vars(owner).values()) if hasattr(owner, "__dict__") else []


def closure_values(function: object) -> list[Any]:
    """Return the references of a function: its wrapped function and its closure."""
    wrapped = getattr(function, "__wrapped__", None)
    cells: tuple[Any, ...] = getattr(function, "__closure__", None) or ()
    return [one for one in chain([wrapped], map(_content, cells)) if one is not None]


def _content(cell: Any) -> Any:  # noqa: ANN401 - a closure cell has no public type
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_users(function: object) -> bool:
    return _root(function) not in _LIBRARIES


def _root(value: object) -> str:
    """Return the top-level package of a function, or of a tool's function."""
    function = getattr(value, "func", None) or getattr(value, "coroutine", None)
    module = getattr(function or value, "__module__", "") or ""
    return str(module).partition(".")[0]


def _named(graph: object, place: tuple[str, ...]) -> tuple[str, ...]:
    """Return a graph's place, including its name, if it has one."""
    name = str(getattr(graph, "name", "") or "")
    return place if name in {"", "LangGraph", place[-1]} else (*place, name)
