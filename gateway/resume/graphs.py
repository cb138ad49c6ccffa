"""Import a graph, refuse breakpoints and ungated tools, attach the checkpointer.

An object is named ``folder/file.py:name`` or ``package.module:name``.

Reading a checkpoint constructs only allow-listed types. Otherwise, write access to a
checkpoint would be enough to import and call anything (CVE-2026-28277,
GHSA-g48c-2wqr-h844). LangGraph's own strict mode depends on an environment variable
that is read once, at import; here strict mode is always on.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard, cast

from langchain.agents.structured_output import (
    AutoStrategy,
    ProviderStrategy,
    ToolStrategy,
)
from langgraph._internal._serde import build_serde_allowlist
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from keyturn.gateway.errors import GraphError
from keyturn.gateway.gates.reachable import (
    Asks,
    ReachableTool,
    closure_values,
    reachable,
)
from keyturn.gateway.protocol.parameters import signature_of

logger = logging.getLogger(__name__)

Graph = Pregel[Any, Any, Any, Any]

BUILTIN = "builtin"
"""Stands in ``ungated`` for all tools of LangChain and deepagents."""

IsFree = Callable[[str], bool]
"""Returns True if the policy never puts a tool to people."""


async def load_graph(
    ref: str, base: Path, ungated: Collection[str] = (), own_gate: IsFree | None = None
) -> Graph:
    """Import the graph at ``path/to/file.py:name`` or ``package.module:name``.

    The name may be a compiled graph, a `StateGraph`, or a function without arguments
    that returns one, synchronous or not.

    Args:
        ref: the setting.
        base: the folder that a relative path starts from.
        ungated: names of the tools that may start without a gate.
        own_gate: for a graph that asks people by itself; see `check_own_gate`.

    Raises:
        GraphError: one sentence with the missing part or the failure.
    """
    return await as_graph(named(ref, base), ref, ungated, own_gate)


async def as_graph(
    found: object,
    ref: str,
    ungated: Collection[str] = (),
    own_gate: IsFree | None = None,
) -> Graph:
    """Turn an imported object into a compiled graph.

    Raises:
        GraphError: it is not a graph, pauses in a way that looks like a crash, or can
            start a tool without a gate that is missing from ``ungated``.
    """
    if callable(found) and not isinstance(found, Pregel | StateGraph):
        found = await made_by(found, ref)
    found = _compiled(found)
    if not _is_compiled(found):
        raise GraphError(
            f"{ref!r} is of type {type(found).__name__}, not a graph; name what "
            "create_agent(...) or StateGraph(...).compile() returned, or a function "
            "without arguments that returns it."
        )
    for place, graph in _every_graph(found):
        if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
            raise GraphError(
                f"{ref!r}{place} is compiled with interrupt_before or interrupt_after. "
                "Such a pause cannot be told from a crash, so it would be run "
                "through; put the tools behind ApprovalMiddleware instead."
            )
    check_gates(found, ref, ungated, own_gate)
    return found


def attached(graph: Graph, saver: BaseCheckpointSaver[Any]) -> Graph:
    """Return a copy of a graph that keeps its threads in this checkpointer.

    Reading a checkpoint builds only types that the graph's own state declares;
    everything else remains plain data.
    """
    strict = saver.with_allowlist(allowed_types(graph))
    # A copy: the program may continue to use the graph that `kept_graph` got.
    return graph.copy(update={"checkpointer": strict})


def _every_graph(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Yield a graph and all graphs inside its nodes, with their places."""
    yield "", graph
    inside = cast("Iterable[tuple[str, Graph]]", graph.get_subgraphs(recurse=True))  # pyright: ignore[reportUnknownMemberType] - subgraphs have unknown state types
    for name, inner in inside:
        # A graph on another server, such as a `RemoteGraph`, cannot be inspected.
        if isinstance(inner, Pregel):  # pyright: ignore[reportUnnecessaryIsInstance] - LangGraph's own types leave it out
            yield f" has a graph at {name!r} that", inner


def _is_compiled(found: object) -> TypeGuard[Graph]:
    return isinstance(found, Pregel)


def _compiled(found: Any) -> object:  # noqa: ANN401 - its four type parameters are the user's
    return found.compile() if isinstance(found, StateGraph) else found  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - as above


def named(ref: str, base: Path, *, what: str = "graph") -> object:
    """Return the object that a setting names, unchanged.

    Args:
        ref: the setting.
        base: the folder that a relative path starts from.
        what: the expected kind of object, for errors.

    Raises:
        GraphError: one sentence with the missing part or the failure.
    """
    place, colon, name = ref.rpartition(":")
    if not (place and colon and name):
        raise GraphError(f"{ref!r} names no {what}; write 'folder/file.py:name'.")
    if place.endswith(".py"):
        module = _module_of_file((base / place).resolve(), ref)
    else:
        module = _module_named(place, base, ref)
    try:
        return getattr(module, name)
    except AttributeError:
        raise GraphError(
            f"{ref!r}: the module has no {name!r}; correct the name."
        ) from None


async def made_by(factory: object, ref: str, *, what: str = "graph") -> object:
    """Call a factory function without arguments, synchronous or not.

    Raises:
        GraphError: it needs arguments, or raises.
    """
    maker = cast("Any", factory)
    try:
        # Check before the call: a TypeError inside the function would look the same.
        signature_of(maker).bind()
    except (TypeError, ValueError):
        raise GraphError(
            f"{ref!r} is a {type(factory).__name__} that cannot be called without "
            f"arguments; name a {what}, or a function without arguments that returns "
            "one."
        ) from None
    try:
        made = maker()
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        raise GraphError(
            f"Calling {ref!r} raised {_described(error)}. Call it on its own to see "
            "where."
        ) from error


def _module_of_file(path: Path, ref: str) -> ModuleType:
    if not path.is_file():
        raise GraphError(
            f"There is no file {str(path)!r}, which {ref!r} names. Correct the name; a "
            "relative one starts at the folder of the settings file."
        )
    # The same name at every start: checkpoints refer to classes by module. Not the
    # plain name, because a user's bot.py must not replace Keyturn's package.
    tail = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"keyturn_graph_{path.stem}_{tail}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GraphError(f"{str(path)!r} cannot be imported as Python.")
    _reachable(path.parent)
    module = importlib.util.module_from_spec(spec)
    # Before execution, as `import` does: dataclasses and pydantic look up their module.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        # Otherwise the next load would get half a module.
        del sys.modules[name]
        raise _import_failed(ref, error) from error
    return module


def _module_named(name: str, base: Path, ref: str) -> ModuleType:
    _reachable(base)
    try:
        return importlib.import_module(name)
    except BaseException as error:
        raise _import_failed(ref, error) from error


def _import_failed(ref: str, error: BaseException) -> BaseException:
    # A module that calls sys.exit() must not end the gateway.
    if not isinstance(error, Exception | SystemExit):
        return error
    return GraphError(
        f"Importing {ref!r} raised {_described(error)}. Import it on its own to see "
        "where."
    )


def _described(error: BaseException) -> str:
    """Return type and text, without the text's final full stop."""
    text = f": {error}".rstrip(".") if str(error) else ""
    return f"{type(error).__name__}{text}"


def _reachable(folder: Path) -> None:
    # As Python does for a script, but last: no user module hides one of Keyturn's.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def check_gates(
    graph: object, ref: str, ungated: Collection[str], own_gate: IsFree | None = None
) -> None:
    """Check that a gate clears every tool that a graph is found to start.

    Tools behind a gate are guarded, so that no caller can bypass the gate.

    Args:
        graph: the compiled graph.
        ref: its name in the settings.
        ungated: names of the tools that may start without a gate.
        own_gate: for a graph whose own middleware asks people about its tools. Such a
            tool needs no other gate, nor does one that this function calls free.

    Raises:
        GraphError: another tool can start without a gate, or a tool has two; the text
            names its place and the next step. Also if ``ungated`` is one text instead
            of names.
    """
    # A text is a collection as well: its letters would be taken as names.
    if isinstance(ungated, str):
        raise GraphError(
            f"'ungated' of {ref!r} is the text {ungated!r}; give a list of names, as "
            f"[{ungated!r}]."
        )
    found = reachable(graph)
    twice = [tool for tool in found.tools if tool.gate and tool.asks is not Asks.NEVER]
    if twice:
        raise GraphError(
            f"{ref!r} asks people twice about {_listed(twice)}: with LangChain's "
            "HumanInTheLoopMiddleware and with ApprovalMiddleware. Remove one of them, "
            "or give interrupt_on to ApprovalMiddleware."
        )
    open_tools = [
        tool
        for tool in found.tools
        if tool.is_ungated and not _is_excepted(tool, ungated)
    ]
    if own_gate is None and open_tools:
        raise GraphError(
            f"{ref!r} can start tools that no gate clears: {_listed(open_tools)}. Give "
            "the agent that calls them ApprovalMiddleware as the last of its "
            "middleware (for subagents of deepagents: gated_subagents), or name the "
            "tools under 'ungated' of this agent. If its own middleware asks people, "
            "set 'own_gate' of this agent."
        )
    unasked = [
        tool
        for tool in open_tools
        if tool.asks is not Asks.ALWAYS and own_gate and not own_gate(tool.name)
    ]
    if unasked:
        raise GraphError(
            f"{ref!r} can start tools that the policy puts to people, and its own "
            f"middleware does not always ask: {_listed(unasked)}. Name them in "
            "interrupt_on of the agent that calls them, without 'when'; or give them "
            "tier auto without raise rules in the policy; or name them under 'ungated' "
            f"of this agent ({BUILTIN!r} names all tools of LangChain and deepagents)."
        )
    # Last: a refused graph remains unchanged.
    found.guard_tools()


def _is_excepted(tool: ReachableTool, ungated: Collection[str]) -> bool:
    return tool.name in ungated or (tool.is_builtin and BUILTIN in ungated)


def check_name(graph: object, agent: str) -> None:
    """Check that a graph's outermost agent has the same name as in the settings.

    With another name, `keyturn.agent.turns` refuses each of its runs.

    Args:
        graph: the compiled graph.
        agent: its name in the settings.

    Raises:
        GraphError: contains both names.
    """
    for tool in reachable(graph).tools:
        if len(tool.place) == 1 and tool.gate not in {"", agent}:
            raise GraphError(
                f"The graph of the agent {agent!r} calls itself {tool.gate!r}; write "
                f"ApprovalMiddleware({agent!r}) in it, or name the agent "
                f"{tool.gate!r} in the settings."
            )


def described(
    graph: object,
    ungated: Collection[str],
    is_free: Callable[[str, str], bool] = lambda _agent, _tool: False,
) -> str:
    """Describe a graph's tools and their gates, in words for people.

    Args:
        graph: the compiled graph.
        ungated: names of the tools that may start without a gate.
        is_free: True if the policy lets an agent's gated tool run without people.
    """
    found = reachable(graph)
    groups: dict[str, list[str]] = {}
    for tool in found.tools:
        names = groups.setdefault(_status(tool, ungated, is_free), [])
        name = (
            tool.name if len(tool.place) == 1 else f"{tool.name} ({shown(tool.place)})"
        )
        if name not in names:
            names.append(name)
    unseen = [shown(place) for place in found.unseen]
    if unseen:
        groups["cannot be looked into, so what runs there is unknown"] = unseen
    listed = [f"{status}: {', '.join(names)}" for status, names in groups.items()]
    return "; ".join(listed) or "no tools"


def _status(
    tool: ReachableTool, ungated: Collection[str], is_free: Callable[[str, str], bool]
) -> str:
    if tool.gate:
        if is_free(tool.gate, tool.name):
            return "free by policy unless a rule raises it"
        return "gated"
    if tool.is_safe:
        return "safe without a gate"
    if tool.asks is not Asks.NEVER:
        asks = "asked" if tool.asks is Asks.ALWAYS else "sometimes asked"
        return f"{asks} about by its own middleware"
    if _is_excepted(tool, ungated):
        return "ungated as the settings say"
    return "free by policy" if is_free("", tool.name) else "ungated"


def shown(place: tuple[str, ...]) -> str:
    """Return a place in a graph in readable form."""
    return " > ".join(place)


def _listed(tools: list[ReachableTool]) -> str:
    by_place: dict[tuple[str, ...], list[str]] = {}
    for tool in tools:
        by_place.setdefault(tool.place, []).append(repr(tool.name))
    return "; ".join(
        f"{', '.join(names)} in {shown(place)!r}" for place, names in by_place.items()
    )


OURS = frozenset({("keyturn.agent.messages", "EditMessage")})
"""Keyturn's record in an agent's state; an agent inside a tool shares the saver."""


def strict_serializer() -> JsonPlusSerializer:
    """Return a serializer that builds only plain data and known types."""
    return JsonPlusSerializer(allowed_msgpack_modules=None)


def allowed_types(graph: Pregel[Any, Any, Any, Any]) -> set[tuple[str, ...]]:
    """Return module and name of the types that a graph's state declares."""
    allowed: set[tuple[str, ...]] = {*OURS, *_declared(graph)}
    inside = cast("Iterable[tuple[str, object]]", graph.get_subgraphs(recurse=True))  # pyright: ignore[reportUnknownMemberType] - subgraphs have unknown state types
    for _, inner in inside:
        allowed |= _declared(inner)
    return allowed


def _declared(graph: object) -> set[tuple[str, ...]]:
    # The types that StateGraph.compile() collects in LangGraph's strict mode
    # (state.py:1233).
    builder: Any = getattr(graph, "builder", None)
    if builder is None:
        return build_serde_allowlist()
    schemas: list[type[Any] | None] = [
        builder.state_schema,
        builder.input_schema,
        builder.output_schema,
        builder.context_schema,
        *(node.input_schema for node in builder.nodes.values()),
        *_response_formats(graph),
    ]
    return build_serde_allowlist(
        schemas=[schema for schema in schemas if schema is not None],
        channels=builder.channels,
    )


def _response_formats(graph: Any) -> list[type[Any]]:  # noqa: ANN401 - types of the user's state
    """Return the types of an agent's ``response_format``.

    LangChain declares ``structured_response`` as Any; only the function of the agent's
    model node has the format.
    """
    found: list[type[Any]] = []
    for node in graph.nodes.values():
        function = getattr(node.bound, "func", None)
        found += [
            cast("Any", value).schema
            for value in closure_values(function)
            if isinstance(value, AutoStrategy | ProviderStrategy | ToolStrategy)
        ]
    # A format may also be a JSON Schema, whose answer is plain data.
    return [one for one in found if not isinstance(one, dict)]
