"""Say which types may be built when a graph's checkpoint is read.

Whoever can write a checkpoint could else name any callable to import and call
(CVE-2026-28277, GHSA-g48c-2wqr-h844). LangGraph's own strict mode depends on an
environment variable that is read once, at import; here it is always on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from langgraph._internal._serde import build_serde_allowlist
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.pregel import Pregel

OURS = frozenset({("gateway.agent.messages", "EditMessage")})
"""Our own record in an agent's state; an agent inside a tool shares the saver."""


def strict_serializer() -> JsonPlusSerializer:
    """Return a serializer that builds nothing but plain data and known types."""
    return JsonPlusSerializer(allowed_msgpack_modules=None)


def allowed_types(graph: Pregel[Any, Any, Any, Any]) -> set[tuple[str, ...]]:
    """Return module and name of the types that a graph's state declares."""
    allowed: set[tuple[str, ...]] = {*OURS, *_declared(graph)}
    inside = cast("Iterable[tuple[str, object]]", graph.get_subgraphs(recurse=True))  # pyright: ignore[reportUnknownMemberType] - subgraphs have unknown state types
    for _, inner in inside:
        allowed |= _declared(inner)
    return allowed


def _declared(graph: object) -> set[tuple[str, ...]]:
    # What StateGraph.compile() collects in LangGraph's strict mode (state.py:1233).
    builder: Any = getattr(graph, "builder", None)
    if builder is None:
        return build_serde_allowlist()
    schemas: list[type[Any] | None] = [
        builder.state_schema,
        builder.input_schema,
        builder.output_schema,
        builder.context_schema,
        *(node.input_schema for node in builder.nodes.values()),
    ]
    return build_serde_allowlist(
        schemas=[schema for schema in schemas if schema is not None],
        channels=builder.channels,
    )
