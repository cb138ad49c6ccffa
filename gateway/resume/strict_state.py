"""Allow-list the types that reading a graph's checkpoint may construct.

Otherwise, write access to a checkpoint would be enough to import and call anything
(CVE-2026-28277, GHSA-g48c-2wqr-h844). LangGraph's own strict mode depends on an
environment variable that is read once, at import; here strict mode is always on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from langchain.agents.structured_output import (
    AutoStrategy,
    ProviderStrategy,
    ToolStrategy,
)
from langgraph._internal._serde import build_serde_allowlist
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.pregel import Pregel

from keyturn.gateway.gates.reachable import closure_values

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
