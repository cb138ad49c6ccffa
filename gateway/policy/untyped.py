"""Find arguments that a policy reads without a declared type.

Without a type, spellings of one value are counted apart, and a rule may get a value
that it cannot compare. This is a warning, not a mistake: the agent may declare the type
with the call, which the policy file does not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keyturn.gateway.documents import Document, Problem
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.expressions import compiled
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.policy.schemas import is_typed
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.validation_errors import Path, ProblemAt, dotted

_APART = 'or spellings such as 7 and "07" may count apart'
_NOT_ADDED = 'or what cannot be added up, such as "49 EUR", escalates the call'
_NOT_COMPARED = (
    'or a value of another type than the rule expects, such as "50" for 50, escalates '
    "the call"
)
_DECLARE = "declare it in the args_schema of"


def untyped_arguments(policy: Policy, document: Document) -> list[Problem]:
    """Return a warning for each argument without a type in a window or a rule."""
    found = (problem for read in _reads(policy) if (problem := _warning(policy, *read)))
    return list(dict.fromkeys(document.problem(*one) for one in found))


def _reads(
    policy: Policy,
) -> Iterator[tuple[Path, str, str, Sequence[str], str]]:
    """Yield each place that reads an argument.

    Yields:
        The place, the tool, the agent or "" for all agents, the path below ``args``,
        and a consequence of a missing type, as the end of a sentence.
    """
    for name, window in policy.windows.items():
        for key, source, risk in (
            ("by", window.by, _APART),
            ("sum", window.sum, _NOT_ADDED),
        ):
            root, *path = (source or "").split(".")
            for tool in window.tools if root == "args" else ():
                yield ("windows", name, key), tool, "", path, risk
    for base, rule in policy.tool_rules():
        agent, tool = str(base[1]) if base[0] == "agents" else "", str(base[-1])
        for index, source in enumerate(rule.same_by):
            place = (*base, "same_by", index)
            yield place, tool, "", source.split(".")[1:], _APART
        for index, raising in enumerate(rule.raise_):
            place = (*base, "raise", index, "when")
            for names in compiled(raising.when).paths:
                yield place, tool, agent, names, _NOT_COMPARED


def _schemas(policy: Policy, tool: str, agent: str) -> list[JsonObject | None]:
    """Return the schemas that a tool may have; None if it has none."""
    if agent:
        return [EffectiveRules(policy, agent, tool).first.args_schema]
    # An entry for one agent without a schema inherits the listed one.
    return [
        rule.args_schema
        for base, rule in policy.tool_rules()
        if base[-1] == tool
        and (
            base[0] == "tools"
            or rule.args_schema is not None
            or tool not in policy.tools
        )
    ]


def _warning(
    policy: Policy, place: Path, tool: str, agent: str, path: Sequence[str], risk: str
) -> ProblemAt | None:
    for schema in _schemas(policy, tool, agent):
        if schema is None or not is_typed(schema, path):
            to = "add args_schema to" if schema is None else _DECLARE
            text = f"{dotted(place)!r}: args.{'.'.join(path)} has no declared type: "
            return place, f"{text}{to} {tool!r}, {risk}."
    return None
