"""Validate references between the fields of a policy, and its rules on sample calls."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import islice, product
from typing import cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import JsonValue

from keyturn.gateway.approvals.precedents import MOST_KEPT
from keyturn.gateway.approvals.requirement import Notify
from keyturn.gateway.policy.cel_tokens import operands, tokens, written
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.eligibility import requirement_problems
from keyturn.gateway.policy.expressions import (
    MAX_WORK,
    Expression,
    compiled,
    scope,
    value_of,
)
from keyturn.gateway.policy.fields import host_of, placeholders
from keyturn.gateway.policy.formats import hides
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.policy.name_check import RECENT, SAME
from keyturn.gateway.policy.rules import (
    DIRECT,
    EVERY_TOOL,
    Policy,
    ToolRule,
    WindowRule,
)
from keyturn.gateway.policy.schemas import Shape, shape_at, unusable
from keyturn.gateway.protocol.records import Tier, Verb, gravest, join
from keyturn.gateway.protocol.schema_validation import subschemas
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.validation_errors import (
    Path,
    ProblemAt,
    dotted,
    near,
    shortened,
    shown,
)


def similar_problems(
    base: Path, rules: tuple[ToolRule, ...], floor: Tier, schema: JsonObject | None
) -> Iterator[ProblemAt]:
    """Yield the mistakes in ``allow_similar`` at one place of the file.

    Args:
        base: the place.
        rules: the wider rule, then the narrower one.
        floor: lowest tier of the calls.
        schema: JSON Schema of the arguments; None if the file has none.
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
            text = f"{one!r} is hidden by 'redact', so reviewers could not see what "
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


_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_ALIKE = 0.8
_CHECKS = frozenset(Draft202012Validator.VALIDATORS) | {"then", "else", "$defs"}
_KINDS = ("array", "boolean", "integer", "null", "number", "object", "string")
_WRITTEN = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}


def mistake(schema: JsonObject) -> ProblemAt | None:
    """Return the first mistake in a schema and its place; None if it is usable.

    Arguments are an object, and only draft 2020-12 is supported. A misspelt keyword is
    a mistake, because JSON Schema would ignore it.
    """
    return (
        _other_draft(schema)
        or _no_schema(schema)
        or _no_object(schema)
        or _misspelt(schema)
        or _unusable(schema)
    )


def _other_draft(schema: JsonObject) -> ProblemAt | None:
    draft = schema.get("$schema", _DRAFT)
    if isinstance(draft, str) and draft.rstrip("#") == _DRAFT:
        return None
    text = f"{shown(draft)} is another draft; leave it out, or write {_DRAFT!r}."
    return ("$schema",), text


def _no_schema(schema: JsonObject) -> ProblemAt | None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        path = tuple(error.absolute_path)
        return path, f"{shown(error.instance)} {_meant(path, error)}"
    except (ArithmeticError, RecursionError, ValueError):
        return None  # the library failed on a part; `unusable` reports it
    return None


def _meant(path: Path, error: SchemaError) -> str:
    if path[-1:] == ("type",):
        word = error.instance if isinstance(error.instance, str) else ""
        return f"is not a type; {near(word, _KINDS)}"
    if error.validator != "type":
        why = f"{error.validator}: {shown(error.validator_value)}"
        return f"is not allowed here ({why}); mend or remove it."
    kinds = cast("str | list[str]", error.validator_value)
    named = [kinds] if isinstance(kinds, str) else kinds
    words = [_WRITTEN[kind] for kind in named]
    return f"is not allowed here; write {' or '.join(words)}."


def _no_object(schema: JsonObject) -> ProblemAt | None:
    kinds = schema.get("type", "object")
    if "object" in (kinds if isinstance(kinds, list) else [kinds]):
        return None
    text = f"it is {shown(kinds)}, and arguments are an object; write object."
    return ("type",), text


def _misspelt(schema: JsonObject) -> ProblemAt | None:
    for path, one in subschemas(schema):
        # JSON Schema allows unknown keywords and ignores them. Sorted: the order of a
        # set of text differs from run to run.
        for word in sorted(one.keys() - _CHECKS):
            for meant in difflib.get_close_matches(word, _CHECKS, 1, _ALIKE):
                text = f"there is no {shortened(word)!r}; did you mean {meant!r}?"
                return (*path, word), text
    return None


def _unusable(schema: JsonObject) -> ProblemAt | None:
    problem = unusable(schema, {})
    return ((), f"{problem}; mend or remove that part.") if problem else None


_SHARE = 4
"""A card waits for other calls for at most a quarter of the time to decide."""


def batch_problems(
    policy: Policy, base: Path, rules: tuple[ToolRule, ...], floor: Tier
) -> Iterator[ProblemAt]:
    """Yield the mistakes in ``batch`` at one place of the file.

    Args:
        policy: the whole policy.
        base: the place.
        rules: the wider rule, then the narrower one.
        floor: lowest tier of the calls.
    """
    rule, path = rules[-1].batch, (*base, "batch")
    if rule is None:
        return
    shares = f"{dotted(path)!r} is for calls that one gesture approves, and these "
    if floor.rank > Tier.APPROVE.rank:
        yield path, f"{shares}are {floor.value!r} at least; remove it."
    if any(Verb.APPROVE in (one.requires_reason or ()) for one in rules):
        yield path, f"{shares}need a reason each; remove one of the two."
    notified = [one.notify for one in rules if one.notify is not None]
    if notified[-1:] == [Notify.DM]:
        text = f"{dotted(path)!r} is for cards in a channel, and people get a direct "
        yield path, f"{text}message about each of these; remove one of the two."
    agent = str(base[1]) if base[0] == "agents" else ""
    ttl_ms = EffectiveRules(policy, agent, str(base[-1])).ttl_ms(Tier.APPROVE)
    most_s = ttl_ms / 1000 / _SHARE
    if rule.within_s > most_s:
        place = (*path, "within")
        text = f"{dotted(place)!r} is {rule.within_s:g} s, and people have "
        text += f"{ttl_ms / 1000:g} s to decide; a card waits for a quarter of that at "
        yield place, f"{text}most, so write {most_s:g}s or less."


def cross_check(policy: Policy) -> Iterator[ProblemAt]:
    """Yield unknown references, exceptions that lower a rule, and idle settings."""
    # People listed by id form a role of this name. A second role with the name would
    # join them, and their quorums would be counted together.
    if DIRECT in policy.roles:
        text = f"{DIRECT!r} is taken for people listed by id; rename this role."
        yield ("roles", DIRECT), text
    yield from _seeded_problems(policy)
    yield from _unheard(policy)
    yield from _on_call(policy)
    yield from requirement_problems(policy)
    for name, window in policy.windows.items():
        yield from _window_problems(policy, name, window)
    for tool, rule in policy.tools.items():
        yield from _tool_problems(policy, ("tools", tool), (rule,))
    for agent, agent_rule in policy.agents.items():
        for tool, override in agent_rule.tools.items():
            base: Path = ("agents", agent, "tools", tool)
            listed = policy.tools.get(tool)
            yield from _lowered(policy, listed, override, (*base, "tier"))
            yield from _widened(listed, override, (*base, "allow"))
            both = (listed, override) if listed else (override,)
            yield from _tool_problems(policy, base, both)


def schema_problems(policy: Policy) -> Iterator[ProblemAt]:
    """Yield the mistakes in schemas; an unusable schema could check nothing."""
    for base, schema in _schemas(policy):
        found = mistake(schema)
        if found is not None:
            inside, problem = found
            path = (*base, *inside)
            text = f"{dotted(path)!r}: this is not a usable JSON Schema 2020-12: "
            yield path, text + problem


def _lowered(
    policy: Policy, listed: ToolRule | None, override: ToolRule, path: Path
) -> Iterator[ProblemAt]:
    own = listed.tier if listed is not None else None
    floor = policy.defaults.tier if own is None else own
    # Only `join` orders tiers.
    if override.tier is None or join(floor, override.tier) is override.tier:
        return
    text = f"{dotted(path)!r} is {override.tier.value!r}, lower than "
    if own is None:
        text += f"'defaults.tier', {floor.value!r}; a tier can only be raised here, so "
        text += f"list {str(path[-2])!r} under 'tools' with the lower tier."
    else:
        text += f"{floor.value!r} of the tool itself; a tier can only be raised."
    yield path, text


def _widened(
    listed: ToolRule | None, override: ToolRule, path: Path
) -> Iterator[ProblemAt]:
    if listed is None or listed.allow is None:
        return
    for index, verb in enumerate(override.allow or ()):
        if verb not in listed.allow:
            text = f"{dotted(path)!r} has {verb.value!r}, which the tool itself does "
            text += "not allow; for one agent decisions can only be left out, so "
            text += f"remove it, or allow it under 'tools.{path[-2]}'."
            yield (*path, index), text


def _seeded_problems(policy: Policy) -> Iterator[ProblemAt]:
    rule = policy.seeded_defects
    for index, call in enumerate(rule.calls if rule else ()):
        tier, _ = EffectiveRules(policy, call.agent, call.tool).tier()
        if not tier.needs_people:
            path: Path = ("seeded_defects", "calls", index, "tool")
            text = f"{dotted(path)!r} is {call.tool!r}, whose tier is {tier.value!r}: "
            text += "such a call gets no decision; name a tool that waits for people."
            yield path, text


def _unheard(policy: Policy) -> Iterator[ProblemAt]:
    for tier in (Tier.APPROVE, Tier.ESCALATE):
        called = policy.tiers.waiting(tier).escalate_to
        rule = policy.roles.get(called or "")
        if rule is not None and rule.notify is Notify.NONE:
            path: Path = ("tiers", tier.value, "escalate_to")
            text = f"{dotted(path)!r} calls {called!r}, which 'notify: none' keeps "
            text += "from being mentioned; remove one of the two."
            yield path, text


def _on_call(policy: Policy) -> Iterator[ProblemAt]:
    """Yield rotations that are unknown, and people in them who could not decide."""
    for name, rule in policy.roles.items():
        path: Path = ("roles", name, "on_call")
        if rule.on_call is None:
            continue
        rotation = policy.on_call.get(rule.on_call)
        if rotation is None:
            text = f"{dotted(path)!r} names the rotation {rule.on_call!r}, which is "
            yield path, f"{text}not in 'on_call'; {near(rule.on_call, policy.on_call)}"
            continue
        # Only Slack has the members of a user group.
        others = [one for one in rotation.people if one not in rule.users]
        if others and not rule.usergroups:
            text = f"{others[0]!r} is on call for {name!r} but does not hold that "
            yield path, f"{text}role, so could not decide; add them to its 'users'."


def _window_problems(
    policy: Policy, name: str, window: WindowRule
) -> Iterator[ProblemAt]:
    known = {*policy.tools, *(t for a in policy.agents.values() for t in a.tools)}
    path: Path
    for index, tool in enumerate(window.tools):
        if tool != EVERY_TOOL and tool not in known:
            path = ("windows", name, "tools", index)
            text = f"{dotted(path)!r} is {tool!r}, which is not in 'tools'; "
            yield path, text + near(tool, known)
    for key, source in (("by", window.by), ("sum", window.sum)):
        if source is None or not source.startswith("args."):
            continue
        path = ("windows", name, key)
        if EVERY_TOOL in window.tools:
            text = f"{dotted(path)!r} is for every tool, but not every tool has "
            yield path, f"{text}{source!r}; list the tools that do."
        for place, schema in _schemas(policy):
            tool = str(place[-2])
            if not window.covers(tool):
                continue
            problem = path_problem(
                schema, source, kinds=AMOUNTS if key == "sum" else None
            )
            if problem is not None:
                text = f"{dotted(path)!r} reads {source!r}, but {tool!r} {problem}"
                yield path, text


def _schemas(policy: Policy) -> Iterator[tuple[Path, JsonObject]]:
    """Yield every schema of arguments in the file, with its place."""
    for base, rule in policy.tool_rules():
        if rule.args_schema is not None:
            yield (*base, "args_schema"), rule.args_schema


def _path_problems(
    own: ToolRule, schema: JsonObject, base: Path
) -> Iterator[ProblemAt]:
    """Yield paths that do not exist: a mistyped path would hide nothing."""
    named: list[tuple[Path, str]] = [
        ((*base, key, index), path)
        for key, paths in (("redact", own.redact), ("same_by", own.same_by))
        for index, path in enumerate(paths)
    ]
    named += [
        ((*base, key), found["path"])
        for key, template in (("description", own.description), ("link", own.link))
        for found in placeholders(template or "")
    ]
    if own.preview is not None:
        named += [
            ((*base, "preview", *([key] if key in own.preview.written else [])), path)
            for key, path in own.preview.paths.items()
        ]
    for place, path in named:
        problem = path_problem(schema, path)
        if problem is not None:
            text = f"{dotted(place)!r} names {path!r}, but the tool {problem}"
            yield place, text


def _link_problems(policy: Policy, own: ToolRule, base: Path) -> Iterator[ProblemAt]:
    hosts, link = policy.defaults.link_hosts, own.link
    if link is None or hosts is None or host_of(link) in hosts:
        return
    path = (*base, "link")
    text = f"{dotted(path)!r} leads to {host_of(link)!r}, which is not among "
    text += "'defaults.link_hosts'; add the host there, or change the link."
    yield path, text


def _total_problems(
    base: Path, rules: tuple[ToolRule, ...], schema: JsonObject | None
) -> Iterator[ProblemAt]:
    """Yield totals of values that cannot be added up, or that are hidden here."""
    path, redact = (*base, "totals"), [one for rule in rules for one in rule.redact]
    # An agent's entry inherits the wider totals unless it sets totals itself.
    named = next((rule.totals for rule in reversed(rules) if rule.totals), ())
    for one in named:
        if hidden := hides(redact, one):
            text = f"{dotted(path)!r} adds up {one!r}, which is hidden by 'redact' "
            yield path, f"{text}({hidden}); remove one of the two."
            continue
        source = one.partition("|")[0]
        problem = path_problem(schema, source, kinds=AMOUNTS) if schema else None
        if problem is not None:
            yield path, f"{dotted(path)!r} names {source!r}, but the tool {problem}"


def _tool_problems(
    policy: Policy, base: Path, rules: tuple[ToolRule, ...]
) -> Iterator[ProblemAt]:
    """Check one place of the file; ``rules`` are the wider and then the narrower."""
    own, tool = rules[-1], str(base[-1])
    listed = policy.tools.get(tool)
    base_tier = listed.tier if listed is not None else None
    given = [rule.tier for rule in rules if rule.tier is not None]
    floor = join(policy.defaults.tier if base_tier is None else base_tier, *given)
    said = [rule.effect for rule in rules if rule.effect]
    floor = join(floor, policy.effects.get(gravest(said), floor))
    schemas = [rule.args_schema for rule in rules if rule.args_schema is not None]
    if schemas:
        # Arguments are checked against the narrower schema only.
        yield from _path_problems(own, schemas[-1], base)
    yield from _link_problems(policy, own, base)
    schema = schemas[-1] if schemas else None
    yield from _total_problems(base, rules, schema)
    yield from similar_problems(base, rules, floor, schema)
    yield from batch_problems(policy, base, rules, floor)
    overridable = [rule.overridable for rule in rules if rule.overridable is not None]
    # The narrowest place with a value wins, as in `EffectiveRules`.
    if overridable[-1:] == [True] and floor is Tier.DENY:
        text = f"{dotted(base)!r} is denied and 'overridable'; nothing overrides a "
        yield (*base, "overridable"), f"{text}denial, so remove it."
    tiers = own.triage.tiers if own.triage else ()
    if tiers and overridable[-1:] != [True] and join(floor, *tiers) not in tiers:
        path = (*base, "triage", "tiers")
        text = f"{dotted(path)!r} names no tier that the tool can have, since it is "
        text += f"{floor.value!r} at least, so triage would never be asked; "
        text += "name a higher one, or remove 'triage'."
        yield path, text
    for index, rule in enumerate(own.raise_):
        path = (*base, "raise", index)
        is_idle = rule.needs is None and join(floor, rule.tier) is floor
        if is_idle and overridable[-1:] != [True]:
            text = f"{dotted((*path, 'to'))!r} is {rule.tier.value!r}, not above "
            text += f"{floor.value!r} of the tool itself, so it could never raise it; "
            text += "write a higher one, or remove the rule."
            yield (*path, "to"), text
        problem = rule_problem(policy, tool, rule.when, schema)
        if problem is not None:
            path = (*path, "when")
            yield path, f"{dotted(path)!r}: {problem}"


# Reject rules that fail on every sample call generated from a tool's schema.
#
# CEL has types, and the library checks them only at run time. So each rule is run on
# sample calls of every type that the tool's schema admits. A rule is refused if it ends
# in a type error, or without a truth value, on all of them.

AMOUNTS = frozenset({"number", "integer", "string"})
"""Types that can be added up; text, because money is often written as decimal text."""

_MOST_SAMPLES = 600
_MAX_LEVEL = 4
_MOST_VALUES = 200
_TIMES_MS = (0, 1_767_225_600_000)
_LOW: dict[str, JsonValue] = {
    "array": [1.0],
    "boolean": False,
    "integer": 0.0,
    "null": None,
    "number": 0.0,
    "object": {},
    "string": "",
}
_HIGH: dict[str, JsonValue] = {
    **_LOW,
    "array": ["a"],
    "boolean": True,
    "integer": 1e9,
    "number": 1e9,
    "string": "a",
}
_WHEN_UNKNOWN = ("array", "boolean", "number", "object", "string")


_Sample = tuple[JsonObject, dict[str, object]]
"""The arguments of one sample call, and its facts."""


def path_problem(
    schema: JsonObject, source: str, kinds: frozenset[str] | None = None
) -> str | None:
    """Return why a tool's schema does not fit a path; None if it may fit.

    Args:
        schema: the tool's schema.
        source: such as ``args.card.number``.
        kinds: the usable JSON types; None for all.
    """
    shape = shape_at(schema, source.split(".")[1:])
    if shape.missing:
        return shape.missing
    if kinds is not None and shape.kinds and not shape.kinds & kinds:
        return f"has {' or '.join(sorted(shape.kinds))} there, which cannot be summed."
    return None


def rule_problem(
    policy: Policy, tool: str, source: str, schema: JsonObject | None
) -> str | None:
    """Return why a rule of a tool could never be checked; None if it may work."""
    expression = compiled(source)
    for window in expression.windows:
        rule = policy.windows.get(window)
        if rule is None:
            return f"there is no window {window!r}; {near(window, policy.windows)}"
        if not rule.covers(tool):
            text = (
                f"the window {window!r} does not count {tool!r}, and a rule reads only "
            )
            text += "windows that count its own tool; add it to "
            return f"{text}'windows.{window}.tools'."
    for path in expression.paths:
        shape = shape_at(schema, path) if schema is not None else Shape()
        if shape.missing:
            return f"args.{'.'.join(path)}: the tool {shape.missing}"
    # Each operand alone: `true || broken` would succeed by its first operand.
    parts = [written(row) for row in operands(tokens(source))]
    asked = [source] if len(parts) == 1 else [*parts, source]
    found = (_type_problem(policy, compiled(part), schema) for part in asked)
    return next((problem for problem in found if problem), None)


def _type_problem(
    policy: Policy, expression: Expression, schema: JsonObject | None
) -> str | None:
    rows = list(islice(_samples(expression, schema), _MOST_SAMPLES + 1))
    # Too many combinations to try. The rule is accepted, and raises if it fails on a
    # call.
    if len(rows) > _MOST_SAMPLES:
        return None
    problem = ""
    for args, values in rows:
        where = scope(args, values, holidays=policy.holidays)
        if expression.work(where.size) > MAX_WORK:
            return None
        try:
            found = value_of(expression, where)
        except TypeError:
            problem = (
                f"{expression.source!r} mixes types that CEL does not mix; numbers of "
                "a call are doubles, so calculate with 2.0 and not 2, and compare like "
                "with like."
            )
            continue
        except Exception:  # noqa: BLE001 - the library raises many types; for rules that read arguments, only a type error is certain for every call
            if "args" in expression.reads:
                return None
            problem = f"{expression.source!r} fails on every call; remove it."
            continue
        # One sample that works is enough: only rules that can never work are refused.
        if isinstance(found, bool):
            return None
        kind = type(found).__name__
        problem = f"{expression.source!r} is neither true nor false but {kind}; write "
        problem += "a comparison."
    return problem or None


def _samples(expression: Expression, schema: JsonObject | None) -> Iterator[_Sample]:
    longest = [
        path
        for path in expression.paths
        # A longer path creates the shorter one: args.a.b creates args.a.
        if not any(other[: len(path)] == path != other for other in expression.paths)
    ]
    choices = [_values_at(schema, path) for path in longest]
    for chosen in product(*choices):
        args: JsonObject = {}
        for path, value in zip(longest, chosen, strict=True):
            _put(args, path, value)
        for number, text, now_ms in zip(
            (0, 1_000_000), ("", "U"), _TIMES_MS, strict=True
        ):
            yield args, _facts(expression, number, text, now_ms)


def _facts(
    expression: Expression, number: int, text: str, now_ms: int
) -> dict[str, object]:
    return {
        "call": {"agent": text, "effect": text, "tool": text},
        "now": utc(now_ms),
        "recent": {
            name: min(number, MOST_KEPT) if name in SAME else number for name in RECENT
        },
        "requester": text,
        "windows": dict.fromkeys(expression.windows, float(number)),
    }


def _values_at(
    schema: JsonObject | None, path: tuple[str, ...]
) -> tuple[JsonValue, ...]:
    shape = shape_at(schema, path) if schema is not None else Shape()
    if schema is not None and shape.node is not None and shape.kinds:
        pairs = [
            _SampleValue(schema, samples).one(shape, kind, 0)
            for kind in sorted(shape.kinds)
            for samples in (_LOW, _HIGH)
        ]
        return tuple(pairs)
    return tuple(samples[kind] for kind in _WHEN_UNKNOWN for samples in (_LOW, _HIGH))


class _SampleValue:
    """Generate one value from the types of a schema, of bounded size."""

    def __init__(self, root: JsonObject, samples: dict[str, JsonValue]) -> None:
        self._root = root
        self._samples = samples
        self._left = _MOST_VALUES

    def one(self, shape: Shape, kind: str, level: int) -> JsonValue:
        """Make a value of one kind."""
        # One budget for the whole value, because a schema that refers to itself
        # branches at each level.
        self._left -= 1
        node = shape.node or {}
        if level > _MAX_LEVEL or self._left < 0:
            return self._samples[kind]
        if kind == "array":
            return [self._any(node.get("items"), level)]
        properties = node.get("properties")
        if kind == "object" and isinstance(properties, dict):
            return {
                name: self._any(member, level)
                for name, member in islice(properties.items(), _MOST_VALUES)
            }
        return self._samples.get(kind)

    def _any(self, node: JsonValue, level: int) -> JsonValue:
        wrapped: JsonObject = {
            **self._root,
            "type": "object",
            "properties": {"it": node},
        }
        shape = shape_at(wrapped, ("it",))
        kinds = sorted(shape.kinds) or ["string"]
        return self.one(shape, kinds[0], level + 1)


def _put(args: JsonObject, path: tuple[str, ...], value: JsonValue) -> None:
    """Set a value at a path; an index becomes a list of one element."""
    node: JsonValue = args
    for name, following in zip(path, (*path[1:], ""), strict=True):
        filler: JsonValue = value
        if following:
            filler = [] if following.isdigit() else {}
        if isinstance(node, dict):
            node = node.setdefault(name, filler)
        elif isinstance(node, list):
            if not node:
                node.append(filler)
            node = node[0]
