"""Find arguments that a policy reads although it does not declare their type.

Without a type, spellings of one value stay apart, and a rule may meet a value that it
cannot compare. The agent's tool may still declare the type when it calls; a policy file
does not show that, so this is worth a warning and is no mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gateway.approvals.strict_json import JsonObject
from gateway.documents import Document, Problem
from gateway.policy.expressions import compiled
from gateway.policy.rules import Policy, RaiseRule, WindowRule
from gateway.policy.selection import Selection
from gateway.policy.shapes import is_typed
from gateway.sentences import Path, dotted

_APART = 'or spellings such as 7 and "07" may count apart'
_NOT_ADDED = 'or what cannot be added up, such as "49 EUR", escalates the call'
_NOT_COMPARED = (
    'or a value of another type than the rule expects, such as "50" for 50, escalates '
    "the call"
)


def untyped_arguments(policy: Policy, document: Document) -> list[Problem]:
    """Return a warning for each argument without a type in a window or a rule."""
    found = [
        _warning(policy, document, place, tool, path, risk)
        for place, tools, path, risk in (*_of_windows(policy), *_of_rules(policy))
        for tool in tools
    ]
    return list(dict.fromkeys(one for one in found if one is not None))


_Use = tuple[Path, tuple[str, ...], tuple[str, ...], str]
"""A place that reads an argument, the tools it is for, the path below ``args``, and
what can happen without a type."""


def _of_windows(policy: Policy) -> Iterator[_Use]:
    for name, window in policy.windows.items():
        for key, source, risk in _sources(window):
            root, *path = source.split(".")
            if root == "args":
                yield ("windows", name, key), window.tools, tuple(path), risk


def _sources(window: WindowRule) -> Iterator[tuple[str, str, str]]:
    if window.by is not None:
        yield "by", window.by, _APART
    if window.sum is not None:
        yield "sum", window.sum, _NOT_ADDED


def _of_rules(policy: Policy) -> Iterator[_Use]:
    for tool, listed in policy.tools.items():
        yield from _reads(("tools", tool), tool, listed.raise_)
    for agent, rule in policy.agents.items():
        for tool, own in rule.tools.items():
            yield from _reads(("agents", agent, "tools", tool), tool, own.raise_)


def _reads(base: Path, tool: str, rules: Sequence[RaiseRule]) -> Iterator[_Use]:
    for index, rule in enumerate(rules):
        for path in compiled(rule.when).paths:
            yield (*base, "raise", index, "when"), (tool,), path, _NOT_COMPARED


def _warning(
    policy: Policy,
    document: Document,
    place: Path,
    tool: str,
    path: tuple[str, ...],
    risk: str,
) -> Problem | None:
    agent = str(place[1]) if place[0] == "agents" else None
    for schema in _schemas(policy, tool, agent):
        if schema is None:
            write = f"add args_schema to {tool!r}"
        elif not is_typed(schema, path):
            write = f"declare it in the args_schema of {tool!r}"
        else:
            continue
        what = f"{dotted(place)!r}: args.{'.'.join(path)} has no declared type"
        return document.problem(place, f"{what}: {write}, {risk}.")
    return None


def _schemas(
    policy: Policy, tool: str, agent: str | None
) -> Iterable[JsonObject | None]:
    """Yield the schemas that a tool has: for one agent, or listed and for each agent.

    An agent for which nothing is listed has the schema that is listed for all.
    """
    agents = [name for name, rule in policy.agents.items() if tool in rule.tools]
    names = agents if tool not in policy.tools else ["", *agents]
    for name in names if agent is None else [agent]:
        yield Selection(policy, name, tool).first.args_schema
