"""Load a graph, refuse breakpoints and ungated tools, attach the checkpointer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from twokey.gateway.errors import GraphError
from twokey.gateway.resume.graph_audit import check_gates
from twokey.gateway.resume.imports import made_by, named
from twokey.gateway.resume.strict_state import allowed_types

logger = logging.getLogger(__name__)

Graph = Pregel[Any, Any, Any, Any]

_THEIRS, _OURS = "HumanInTheLoopMiddleware.after_model", "ApprovalMiddleware."
"""Nodes that LangChain makes of its own middleware and of ours."""


async def load_graph(ref: str, base: Path, ungated: Collection[str] = ()) -> Graph:
    """Import the graph behind ``path/to/file.py:name`` or ``package.module:name``.

    The name may be a compiled graph, a `StateGraph`, or a function without arguments
    that returns one, synchronous or not.

    Args:
        ref: what the settings say.
        base: the folder that a relative path starts from.
        ungated: names of the tools that may start where no gate clears them.

    Raises:
        GraphError: one sentence that says what is missing or went wrong.
    """
    return await as_graph(named(ref, base), ref, ungated)


async def as_graph(found: object, ref: str, ungated: Collection[str] = ()) -> Graph:
    """Turn what a name stands for into a compiled graph.

    Raises:
        GraphError: when it is not a graph, pauses in a way that cannot be told from a
            crash, or can start a tool that no gate clears and ``ungated`` does not
            name.
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
        if _THEIRS in graph.nodes and any(
            name.startswith(_OURS) for name in graph.nodes
        ):
            _warn_of_two_pauses(f"{ref}{place.removesuffix(' that')}")
        if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
            raise GraphError(
                f"{ref!r}{place} is compiled with interrupt_before or interrupt_after. "
                "Such a pause cannot be told from a crash, so it would be run "
                "through; put the tools behind ApprovalMiddleware instead."
            )
    check_gates(found, ref, ungated)
    return found


@cache
def _warn_of_two_pauses(graph: str) -> None:
    # Once: a program may build its graph for each request.
    logger.warning(
        "graph.asks_twice graph=%s: LangChain's HumanInTheLoopMiddleware stands beside "
        "ApprovalMiddleware, so a call pauses for both, and nobody in Slack answers "
        "its question; give its interrupt_on to ApprovalMiddleware instead",
        graph,
    )


def attached(graph: Graph, saver: BaseCheckpointSaver[Any]) -> Graph:
    """Return a copy of a graph that keeps its threads in this checkpointer.

    Only types that the graph's own state declares are built when a checkpoint is
    read; anything else stays plain data.
    """
    strict = saver.with_allowlist(allowed_types(graph))
    # A copy: `local_runner` is given graphs that the program goes on using by itself.
    return graph.copy(update={"checkpointer": strict})


def _every_graph(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Return a graph and all that its nodes are known to run, with their places."""
    yield "", graph
    inside = cast("Iterable[tuple[str, Graph]]", graph.get_subgraphs(recurse=True))  # pyright: ignore[reportUnknownMemberType] - subgraphs have unknown state types
    for name, inner in inside:
        yield f" has a graph at {name!r} that", inner


def _is_compiled(found: object) -> TypeGuard[Graph]:
    return isinstance(found, Pregel)


def _compiled(found: Any) -> object:  # noqa: ANN401 - its four type parameters are the user's
    return found.compile() if isinstance(found, StateGraph) else found  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - as above
