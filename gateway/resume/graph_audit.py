"""Audit a graph: which tools it can start, and whether a gate clears each."""

from __future__ import annotations

import logging
from collections.abc import Collection

from twokey.gateway.errors import GraphError
from twokey.gateway.gates.reachable import Reachable, ReachableTool, reachable
from twokey.gateway.policy.evaluate import listed_tier
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.tiers import Tier

logger = logging.getLogger(__name__)

_FREE = frozenset({Tier.AUTO, Tier.NOTIFY})
_SHOWN = 20
"""How many tools of one place a refusal names."""


def check_gates(graph: object, ref: str, ungated: Collection[str]) -> None:
    """Check that everything that a graph can be seen to start is gated.

    Behind a gate, its tools are guarded, so that nothing reaches them past the gate.

    Args:
        graph: the compiled graph.
        ref: what the settings call it.
        ungated: names of the tools that may start without a gate.

    Raises:
        GraphError: when another tool can; the text says where, and what to do. Also
            when ``ungated`` is one text instead of names.
    """
    # A text is a collection as well: its letters would be taken as names.
    if isinstance(ungated, str):
        raise GraphError(
            f"'ungated' of {ref!r} is the text {ungated!r}; give a list of names, as "
            f"[{ungated!r}]."
        )
    found = reachable(graph)
    open_tools = [
        tool for tool in found.tools if tool.is_ungated and tool.name not in ungated
    ]
    if open_tools:
        raise GraphError(
            f"{ref!r} can start tools that no gate clears: {_listed(open_tools)}. Give "
            "the agent that calls them ApprovalMiddleware as the last of its "
            "middleware (for subagents of deepagents: gated_subagents), or name the "
            "tools under 'ungated' of this agent."
        )
    # Last: a graph that is refused stays as it was given.
    found.guard_tools()
    unknown = _unknown(found, ungated)
    if unknown:
        logger.warning("graph.ungated_unknown graph=%s tools=%s", ref, unknown)


def check_name(graph: object, agent: str) -> None:
    """Check that the outermost agent of a graph calls itself by its name here.

    `twokey.agent.nesting` refuses each run of another one, once somebody has asked.

    Args:
        graph: the compiled graph.
        agent: the name under which the settings have it.

    Raises:
        GraphError: names both names.
    """
    for tool in reachable(graph).tools:
        if len(tool.place) == 1 and tool.gate not in {"", agent}:
            raise GraphError(
                f"The graph of the agent {agent!r} calls itself {tool.gate!r}; write "
                f"ApprovalMiddleware({agent!r}) in it, or name the agent "
                f"{tool.gate!r} in the settings."
            )


def described(
    graph: object, ungated: Collection[str], policy: Policy | None = None
) -> str:
    """Return what a graph can start, for people: each tool, and who clears it.

    Args:
        graph: the compiled graph.
        ungated: names of the tools that may start without a gate.
        policy: says which gated tools are auto-approved; None leaves that open.
    """
    found = reachable(graph)
    groups: dict[str, list[str]] = {}
    for tool in found.tools:
        names = groups.setdefault(_status(tool, ungated, policy), [])
        name = (
            tool.name if len(tool.place) == 1 else f"{tool.name} ({shown(tool.place)})"
        )
        if name not in names:
            names.append(name)
    unseen = [shown(place) for place in found.unseen]
    if unseen:
        groups["cannot be seen, so what these functions start is unknown"] = unseen
    unknown = _unknown(found, ungated)
    if unknown:
        groups["named under 'ungated', but this graph cannot start them"] = unknown
    listed = [f"{status}: {', '.join(names)}" for status, names in groups.items()]
    return "; ".join(listed) or "no tools"


def _unknown(found: Reachable, ungated: Collection[str]) -> list[str]:
    """Return exceptions that name nothing: a wrong spelling, or a tool that is gone.

    What stands inside functions cannot be read, so with such functions nobody knows.
    """
    if found.unseen:
        return []
    known = {tool.name for tool in found.tools}
    return sorted(name for name in ungated if name not in known)


def _status(
    tool: ReachableTool, ungated: Collection[str], policy: Policy | None
) -> str:
    if tool.gate:
        is_free = (
            policy is not None
            and listed_tier(policy, agent=tool.gate, tool=tool.name) in _FREE
        )
        return "free by policy unless a rule raises it" if is_free else "gated"
    if tool.is_safe:
        return "safe without a gate"
    return "ungated as the settings say" if tool.name in ungated else "ungated"


def shown(place: tuple[str, ...]) -> str:
    """Return a place in a graph as people read it."""
    return " > ".join(place)


def _listed(tools: list[ReachableTool]) -> str:
    by_place: dict[tuple[str, ...], list[str]] = {}
    for tool in tools:
        by_place.setdefault(tool.place, []).append(repr(tool.name))
    parts: list[str] = []
    for place, names in by_place.items():
        more = len(names) - _SHOWN
        rest = f" and {more} more" if more > 0 else ""
        parts.append(f"{', '.join(names[:_SHOWN])}{rest} in {shown(place)!r}")
    return "; ".join(parts)
