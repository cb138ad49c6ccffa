"""Load a policy file, validate it and its rules on sample calls, with line numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import JsonValue

from keyturn.gateway.approvals.precedents import MOST_KEPT
from keyturn.gateway.documents import (
    MAX_PROBLEMS,
    BadDocument,
    Document,
    Problem,
    parse_yaml,
    read_model,
)
from keyturn.gateway.errors import BadJson, PolicyError
from keyturn.gateway.policy.cel_tokens import operands, tokens, written
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.eligibility import requirement_problems
from keyturn.gateway.policy.expressions import (
    MAX_WORK,
    RECENT,
    SAME,
    Expression,
    compiled,
    scope,
    value_of,
)
from keyturn.gateway.policy.fields import host_of, placeholders
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.policy.rules import (
    DIRECT,
    EVERY_TOOL,
    Policy,
    ToolRule,
    WindowRule,
)
from keyturn.gateway.policy.schemas import Shape, shape_at, unusable
from keyturn.gateway.protocol.records import Tier, join
from keyturn.gateway.protocol.schema_validation import subschemas
from keyturn.gateway.protocol.strict_json import JsonObject, accept, tokens_of
from keyturn.gateway.validation_errors import (
    Path,
    ProblemAt,
    dotted,
    near,
    shortened,
    shown,
)

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_ALIKE = 0.8
_KEYWORDS = frozenset(Draft202012Validator.VALIDATORS) | {"then", "else", "$defs"}


def schema_problems(policy: Policy) -> Iterator[ProblemAt]:
    """Yield the mistakes in schemas; an unusable schema could check nothing."""
    for base, rule in policy.tool_rules():
        found = mistake(rule.args_schema) if rule.args_schema is not None else None
        if found is not None:
            inside, problem = found
            path = (*base, "args_schema", *inside)
            text = f"{dotted(path)!r}: this is not a usable JSON Schema 2020-12: "
            yield path, text + problem


def mistake(schema: JsonObject) -> ProblemAt | None:
    """Return the first mistake in a schema and its place; None if it is usable.

    Arguments are an object, and only draft 2020-12 is supported. A misspelt keyword is
    a mistake, because JSON Schema would ignore it.
    """
    if schema.get("$schema", _DRAFT) not in (_DRAFT, f"{_DRAFT}#"):
        return ("$schema",), f"leave it out, or write {_DRAFT!r}."
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        path: Path = tuple(error.absolute_path)
        if path[-1:] == ("type",):
            word = str(error.instance)
            return path, f"{word!r} is not a type; {near(word, _SAMPLES)}"
        why = f"{error.validator}: {shown(error.validator_value)}"
        return path, f"{shown(error.instance)} is not allowed here ({why}); mend it."
    except (ArithmeticError, RecursionError, ValueError):
        pass  # the library failed on a part; `unusable` reports it
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        text = f"it is {shown(kinds)}, and arguments are an object; write object."
        return ("type",), text
    if (found := _misspelt(schema)) is not None:
        return found
    problem = unusable(schema, {})
    return ((), f"{problem}; mend or remove that part.") if problem else None


def _misspelt(schema: JsonObject) -> ProblemAt | None:
    for path, one in subschemas(schema):
        # JSON Schema allows unknown keywords and ignores them. Sorted: the order of a
        # set of text differs from run to run.
        for word in sorted(one.keys() - _KEYWORDS):
            for meant in difflib.get_close_matches(word, _KEYWORDS, 1, _ALIKE):
                text = f"there is no {shortened(word)!r}; did you mean {meant!r}?"
                return (*path, word), text
    return None


def cross_check(policy: Policy) -> Iterator[ProblemAt]:
    """Yield unknown references, entries that lower a tier, and rules without effect."""
    # People listed by id form a role of this name. A second role with the name would
    # join them, and their quorums would be counted together.
    if DIRECT in policy.roles:
        text = f"{DIRECT!r} is taken for people listed by id; rename this role."
        yield ("roles", DIRECT), text
    yield from _seeded_problems(policy)
    yield from _on_call(policy)
    yield from requirement_problems(policy)
    for name, window in policy.windows.items():
        yield from _window_problems(policy, name, window)
    for base, rule in policy.tool_rules():
        yield from _tool_problems(policy, base, rule)


def _seeded_problems(policy: Policy) -> Iterator[ProblemAt]:
    rule = policy.seeded_defects
    for index, call in enumerate(rule.calls if rule else ()):
        tier, _ = EffectiveRules(policy, call.agent, call.tool).tier()
        if not tier.needs_people:
            path: Path = ("seeded_defects", "calls", index, "tool")
            text = f"{dotted(path)!r} is {call.tool!r}, whose tier is {tier.value!r}: "
            text += "such a call gets no decision; name a tool that waits for people."
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
    path: Path
    for index, tool in enumerate(window.tools):
        if tool != EVERY_TOOL and tool not in policy.tool_names:
            path = ("windows", name, "tools", index)
            text = f"{dotted(path)!r} is {tool!r}, which is not in 'tools'; "
            yield path, text + near(tool, policy.tool_names)
    for key, source, kinds in (("by", window.by, None), ("sum", window.sum, AMOUNTS)):
        if source is None or not source.startswith("args."):
            continue
        path = ("windows", name, key)
        if EVERY_TOOL in window.tools:
            text = f"{dotted(path)!r} is for every tool, but not every tool has "
            yield path, f"{text}{source!r}; list the tools that do."
        for base, rule in policy.tool_rules():
            if window.covers(str(base[-1])):
                yield from _path_problem(rule.args_schema, path, source, base, kinds)


def _tool_problems(policy: Policy, base: Path, own: ToolRule) -> Iterator[ProblemAt]:
    """Check one entry of a tool: of all agents, or of one."""
    tool, agent = str(base[-1]), str(base[1]) if base[0] == "agents" else ""
    rules = EffectiveRules(policy, agent, tool)
    floor, schema = rules.tier()[0], rules.first.args_schema
    if agent:
        yield from _lowered(policy, own, (*base, "tier"))
    for keys, source, kinds in _paths(own):
        yield from _path_problem(schema, (*base, *keys), source, base, kinds)
    hosts = policy.defaults.link_hosts
    if own.link is not None and hosts is not None and host_of(own.link) not in hosts:
        path = (*base, "link")
        text = f"{dotted(path)!r} leads to {host_of(own.link)!r}, which is not among "
        text += "'defaults.link_hosts'; add the host there, or change the link."
        yield path, text
    # A card waits for other calls for at most a quarter of the time to decide.
    most_s = rules.ttl_ms(Tier.APPROVE) / 4_000
    if own.batch is not None and own.batch.within_s > most_s:
        path = (*base, "batch", "within")
        text = f"{dotted(path)!r} is more than a quarter of the time to decide; write "
        yield path, f"{text}{most_s:g}s or less."
    for index, rule in enumerate(own.raise_):
        path = (*base, "raise", index)
        is_idle = rule.needs is None and join(floor, rule.tier) is floor
        if is_idle and not rules.first.overridable:
            text = f"{dotted((*path, 'to'))!r} is {rule.tier.value!r}, not above "
            text += f"{floor.value!r} of the tool itself, so it could never raise it; "
            text += "write a higher one, or remove the rule."
            yield (*path, "to"), text
        problem = rule_problem(policy, tool, rule.when, schema)
        if problem is not None:
            path = (*path, "when")
            yield path, f"{dotted(path)!r}: {problem}"


def _lowered(policy: Policy, own: ToolRule, path: Path) -> Iterator[ProblemAt]:
    listed = policy.tools.get(str(path[-2]), ToolRule())
    floor = listed.tier or policy.defaults.tier
    # Only `join` orders tiers.
    if own.tier is not None and join(floor, own.tier) is not own.tier:
        text = f"{dotted(path)!r} is {own.tier.value!r}, lower than {floor.value!r}, "
        text += "the tier of the tool for all agents; here it can only be raised."
        yield path, text


def _paths(own: ToolRule) -> Iterator[tuple[Path, str, frozenset[str] | None]]:
    """Yield each path that a tool's entry names: its keys, the path, its types."""
    for key, paths in (("redact", own.redact), ("same_by", own.same_by)):
        yield from (((key, index), path, None) for index, path in enumerate(paths))
    for key, template in (("description", own.description), ("link", own.link)):
        for found in placeholders(template or ""):
            yield (key,), found["path"], None
    if own.preview is not None:
        for key, path in own.preview.paths.items():
            keys = ("preview", key) if key in own.preview.written else ("preview",)
            yield keys, path, None
    for total in own.totals:
        yield ("totals",), total.partition("|")[0], AMOUNTS
    if own.allow_similar is not None:
        for path in own.allow_similar.may_differ:
            yield ("allow_similar", "may_differ"), path, None
        if own.allow_similar.sum is not None:
            yield ("allow_similar", "sum"), own.allow_similar.sum, AMOUNTS


def _path_problem(
    schema: JsonObject | None,
    place: Path,
    source: str,
    base: Path,
    kinds: frozenset[str] | None,
) -> Iterator[ProblemAt]:
    """Yield a path that the tool at ``base`` does not have: it would mean nothing."""
    problem = path_problem(schema, source, kinds=kinds)
    if problem is not None:
        yield place, f"{dotted(place)!r} names {source!r}, but {base[-1]!r} {problem}"


# Reject rules that fail on every sample call generated from a tool's schema.
#
# CEL has types, and the library checks them only at run time. So each rule is run on
# sample calls of every type that the tool's schema admits. A rule is refused if it ends
# in a type error, or without a truth value, on all of them.

AMOUNTS = frozenset({"number", "integer", "string"})
"""Types that can be added up; text, because money is often written as decimal text."""

_MOST_SAMPLES = 600
_MAX_LEVEL = 4
_MOST_MEMBERS = 6
_TIMES_MS = (0, 1_767_225_600_000)
_SAMPLES: Mapping[str, tuple[JsonValue, ...]] = {
    "array": ([1.0], ["a"]),
    "boolean": (False, True),
    "number": (0.0, 1e9),
    "object": ({},),
    "string": ("", "a"),
    "integer": (0.0, 1e9),
    "null": (None,),
}
_WHEN_UNKNOWN = ("array", "boolean", "number", "object", "string")


def path_problem(
    schema: JsonObject | None, source: str, kinds: frozenset[str] | None = None
) -> str | None:
    """Return why a tool's schema does not fit a path; None if it may fit.

    Args:
        schema: the tool's schema; None if the file has none.
        source: such as ``args.card.number``.
        kinds: the usable JSON types; None for all.
    """
    shape = shape_at(schema or {}, source.split(".")[1:])
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
            text = f"the window {window!r} does not count {tool!r}; add it to "
            return f"{text}'windows.{window}.tools'."
    for path in expression.paths:
        if missing := shape_at(schema or {}, path).missing:
            return f"args.{'.'.join(path)}: the tool {missing}"
    # Each operand alone: `true || broken` would succeed by its first operand.
    parts = [written(row) for row in operands(tokens(source))]
    asked = [source] if len(parts) == 1 else [*parts, source]
    found = (_type_problem(policy, compiled(part), schema or {}) for part in asked)
    return next((problem for problem in found if problem), None)


def _type_problem(policy: Policy, expression: Expression, schema: JsonObject) -> str:
    rows = list(islice(_calls(expression, schema), _MOST_SAMPLES + 1))
    # Too many combinations to try. The rule is accepted, and raises if it fails on a
    # call.
    if len(rows) > _MOST_SAMPLES:
        return ""
    problem = ""
    for args, values in rows:
        where = scope(args, values, holidays=policy.holidays)
        if expression.work(where.size) > MAX_WORK:
            return ""
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
                return ""
            problem = f"{expression.source!r} fails on every call; remove it."
            continue
        # One sample that works is enough: only rules that can never work are refused.
        if isinstance(found, bool):
            return ""
        kind = type(found).__name__
        problem = f"{expression.source!r} is neither true nor false but {kind}; write "
        problem += "a comparison."
    return problem


def _calls(
    expression: Expression, schema: JsonObject
) -> Iterator[tuple[JsonObject, dict[str, object]]]:
    """Yield the arguments of sample calls, with their facts."""
    longest = [
        path
        for path in expression.paths
        # A longer path creates the shorter one: args.a.b creates args.a.
        if not any(other[: len(path)] == path != other for other in expression.paths)
    ]
    shapes = [shape_at(schema, path) for path in longest]
    for chosen in product(*(_samples(schema, shape) for shape in shapes)):
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


def _samples(schema: JsonObject, shape: Shape, level: int = 0) -> list[JsonValue]:
    """Return values of each type at a place of a schema, of bounded size."""
    node, found = shape.node or {}, list[JsonValue]()
    items, properties = node.get("items"), node.get("properties")

    def below(part: JsonValue) -> list[JsonValue]:
        inside: JsonObject = {**schema, "type": "object", "properties": {"it": part}}
        return _samples(schema, shape_at(inside, ("it",)), level + 1)

    for kind in sorted(shape.kinds) or _WHEN_UNKNOWN:
        if kind == "array" and isinstance(items, dict) and level < _MAX_LEVEL:
            found += [[one] for one in below(items)]
        elif kind == "object" and isinstance(properties, dict) and level < _MAX_LEVEL:
            some = islice(properties.items(), _MOST_MEMBERS)
            members = {name: below(part) for name, part in some}
            # The first and the last value of each member, not every combination.
            for place in (0, -1):
                found.append({name: each[place] for name, each in members.items()})
        else:
            found += _SAMPLES.get(kind, ())
    return found


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


class BadPolicy(PolicyError):
    """A policy file cannot be used.

    Attributes:
        problems: all problems of the file; the text has the first.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        more = len(problems) - 1
        others = f" ({more} more; run 'keyturn policy check FILE')" if more else ""
        super().__init__(f"{problems[0].text}{others}", problems[0].location)


def load_policy(text: str, source: str, *, under: str = "") -> Policy:
    """Load a policy from YAML; see `load_with_lines`."""
    return load_with_lines(text, source, under=under)[0]


def load_with_lines(
    text: str, source: str, *, under: str = ""
) -> tuple[Policy, Document]:
    """Load a policy from YAML, with its document for the line numbers.

    Args:
        text: the YAML.
        source: its file name, for ``file:line``.
        under: the top-level key of the policy, if it is part of a file.

    Raises:
        BadPolicy: names the file, the line and a near name for a typo.
    """
    try:
        document = parse_yaml(text, source)
        if under:
            document = document.under(under)
        # Before the model: pydantic accepts an infinite number, which has no digest.
        _check_json(document)
        _check_empty(document)
        policy = read_model(document, Policy, shows_values=True)
    except BadDocument as error:
        raise BadPolicy(error.problems) from error
    # In this order: references are checked against the schemas, which must be sound.
    for check in (schema_problems, cross_check):
        found = islice(check(policy), MAX_PROBLEMS)
        problems = tuple(dict.fromkeys(document.problem(*one) for one in found))
        if problems:
            raise BadPolicy(problems)
    return policy, document


def _check_json(document: Document) -> None:
    try:
        accept(document.value)
    except BadJson as error:
        names = tokens_of(error.pointer)
        path = tuple(int(name) if name.isdecimal() else name for name in names)
        raise BadDocument(
            [document.problem(path, f"{dotted(path)!r}: {error.problem}.")]
        ) from error


def _check_empty(document: Document) -> None:
    """Refuse a key without a value: it would count as missing."""
    problems = [
        document.problem(
            path,
            f"{dotted(path)!r} is empty; write a value, in quotes where it begins with "
            "'#', or remove the key.",
        )
        for path in islice(_empty(document.value, ()), MAX_PROBLEMS)
    ]
    if problems:
        raise BadDocument(problems)


def _empty(value: JsonValue, path: Path) -> Iterator[Path]:
    if value is None and path:
        yield path
    if path[-1:] == ("args_schema",) and path[-3:-2] == ("tools",):
        return  # a JSON Schema has a use for null
    members: Iterable[tuple[str | int, JsonValue]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for token, member in members:
        yield from _empty(member, (*path, token))
