"""Find arguments that a policy reads without a declared type.

Without a type, spellings of one value are counted apart, and a rule may get a value
that it cannot compare. This is a warning, not a mistake: the agent may declare the type
with the call, which the policy file does not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from keyturn.gateway.documents import Document, Problem
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.expressions import compiled
from keyturn.gateway.policy.rules import Policy, RaiseRule
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
    schemas = _schemas(policy)
    found = (
        *_of_windows(policy, schemas),
        *_of_effects(policy, schemas),
        *_of_rules(policy, schemas),
    )
    return list(dict.fromkeys(document.problem(*one) for one in found))


def _schemas(policy: Policy) -> dict[str, list[JsonObject | None]]:
    """Return for each tool its listed schema, and those of single agents."""
    found = {tool: [rule.args_schema] for tool, rule in policy.tools.items()}
    for agent in policy.agents.values():
        for tool, rule in agent.tools.items():
            if rule.args_schema is not None or tool not in policy.tools:
                found.setdefault(tool, []).append(rule.args_schema)
    return found


def _of_windows(
    policy: Policy, schemas: Mapping[str, Sequence[JsonObject | None]]
) -> Iterator[ProblemAt]:
    for name, window in policy.windows.items():
        for key, source, risk in (
            ("by", window.by, _APART),
            ("sum", window.sum, _NOT_ADDED),
        ):
            root, *path = (source or "").split(".")
            if root != "args":
                continue
            for tool in window.tools:
                place = ("windows", name, key)
                yield from _warned(place, tool, tuple(path), schemas[tool], risk)


def _of_effects(
    policy: Policy, schemas: Mapping[str, Sequence[JsonObject | None]]
) -> Iterator[ProblemAt]:
    for base, rule in policy.tool_rules():
        for index, source in enumerate(rule.same_by):
            place, path = (*base, "same_by", index), tuple(source.split(".")[1:])
            tool = str(base[-1])
            yield from _warned(place, tool, path, schemas[tool], _APART)


def _of_rules(
    policy: Policy, schemas: Mapping[str, Sequence[JsonObject | None]]
) -> Iterator[ProblemAt]:
    for tool, listed in policy.tools.items():
        yield from _reads(("tools", tool), listed.raise_, schemas[tool])
    for agent, rule in policy.agents.items():
        for tool, own in rule.tools.items():
            schema = EffectiveRules(policy, agent, tool).first.args_schema
            yield from _reads(("agents", agent, "tools", tool), own.raise_, [schema])


def _reads(
    base: Path, rules: Sequence[RaiseRule], schemas: Sequence[JsonObject | None]
) -> Iterator[ProblemAt]:
    for index, rule in enumerate(rules):
        place = (*base, "raise", index, "when")
        for path in compiled(rule.when).paths:
            yield from _warned(place, str(base[-1]), path, schemas, _NOT_COMPARED)


def _warned(
    place: Path,
    tool: str,
    path: tuple[str, ...],
    schemas: Sequence[JsonObject | None],
    risk: str,
) -> Iterator[ProblemAt]:
    """Yield a warning for a place that reads an argument without a type.

    Args:
        place: place in the policy.
        tool: name of the tool.
        path: path of the argument below ``args``.
        schemas: the schemas that the tool may have there; None if it has none.
        risk: a consequence of the missing type, as the end of a sentence.
    """
    for schema in schemas:
        if schema is None or not is_typed(schema, path):
            to = "add args_schema to" if schema is None else _DECLARE
            text = f"{dotted(place)!r}: args.{'.'.join(path)} has no declared type: "
            yield place, f"{text}{to} {tool!r}, {risk}."
            return
