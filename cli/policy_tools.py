"""Look for tools and agents that a policy names and the graphs of the settings lack."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from twokey.gateway.gates.reachable import reachable
from twokey.gateway.policy.rules import Policy

_SHOWN = 10


def unknown_names(policy: Policy, graphs: Mapping[str, object]) -> str:
    """Return what the policy says of tools and agents that are not there; "" for none.

    A misspelt name is no mistake of the policy's form: its rule applies to no call, and
    the tool that was meant gets the default tier, also where the rule would deny it.
    It may as well be the name of a tool of an agent in another process, so this is for
    people to judge.

    Args:
        policy: whose ``tools`` and ``agents`` are looked at.
        graphs: every graph of the settings, by the name of its agent.
    """
    seen = {name: reachable(graph) for name, graph in graphs.items()}
    # A function of a graph can start tools that nobody can list.
    if not seen or any(one.unseen for one in seen.values()):
        return ""
    tools = {tool.name for one in seen.values() for tool in one.tools}
    agents = {*seen} | {tool.gate for one in seen.values() for tool in one.tools}
    listed = {*policy.tools}
    for name in (agent for agent in policy.agents if agent in agents):
        listed |= {*policy.agents[name].tools}
    parts = [
        _missing("tool", sorted(listed - tools), sorted(tools - listed)),
        _missing(
            "agent",
            sorted({*policy.agents} - agents),
            sorted(agents - {*policy.agents}),
        ),
    ]
    return " ".join(part for part in parts if part)


def _missing(kind: str, names: list[str], unlisted: list[str]) -> str:
    """Return a sentence about names without a tool or agent.

    Args:
        kind: what they should be.
        names: those of the policy that are not there.
        unlisted: those that are there and not in the policy: one may be meant.
    """
    if not names:
        return ""
    parts: list[str] = []
    for name in names[:_SHOWN]:
        close = difflib.get_close_matches(name, [one for one in unlisted if one], n=1)
        parts.append(f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name))
    rest = len(names) - _SHOWN
    more = f" and {rest} more" if rest > 0 else ""
    return (
        f"the policy names {kind}s that no graph of the settings has: "
        f"{', '.join(parts)}{more}. What it says of them applies to none of these "
        "graphs; that is right only for agents in other processes."
    )
