"""Validate ``allow_similar`` of a policy: find limits that are unusable or redacted."""

from __future__ import annotations

from collections.abc import Iterator

from twokey.gateway.policy.rules import ToolRule
from twokey.gateway.policy.type_check import AMOUNTS, path_problem
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.validation_errors import Path, ProblemAt, dotted


def similar_problems(
    base: Path, rules: tuple[ToolRule, ...], floor: Tier, schema: JsonObject | None
) -> Iterator[ProblemAt]:
    """Yield what is wrong with ``allow_similar`` of one place of the file.

    Args:
        base: the place.
        rules: the wider rule and then the narrower.
        floor: the tier that calls have at least.
        schema: of the arguments; None where the file has none.
    """
    rule, path = rules[-1].allow_similar, (*base, "allow_similar")
    if rule is None:
        return
    if floor.rank > Tier.APPROVE.rank:
        text = f"{dotted(path)!r} covers calls of tier 'approve', and these are "
        yield path, f"{text}{floor.value!r} at least; remove it."
    failing = [one.on_failure for one in rules if one.on_failure is not None]
    if failing[-1:] == ["ask"]:
        text = f"{dotted(path)!r} covers no call with 'on_failure: ask', because its "
        yield path, f"{text}agent does not wait for people; remove one of the two."
    hidden = dict.fromkeys(one for each in rules for one in each.redact)
    for one in hidden:
        if not any(f"{one}.".startswith(f"{free}.") for free in rule.may_differ):
            text = f"{one!r} is hidden by 'redact', so nobody could see what "
            text += f"{dotted(path)!r} allows; add it to 'may_differ', or remove one."
            yield path, text
    yield from _paths(path, [("may_differ", one) for one in rule.may_differ], schema)
    if rule.sum is not None:
        yield from _paths(path, [("sum", rule.sum)], schema)


def _paths(
    path: Path, named: list[tuple[str, str]], schema: JsonObject | None
) -> Iterator[ProblemAt]:
    for key, source in named if schema is not None else ():
        kinds = AMOUNTS if key == "sum" else None
        problem = path_problem(schema or {}, source, kinds=kinds)
        if problem is not None:
            place = (*path, key)
            yield place, f"{dotted(place)!r} names {source!r}, but the tool {problem}"
