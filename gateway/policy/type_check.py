"""Reject rules that fail on every sample call generated from a tool's schema.

CEL has types, and the library checks them only while it runs. So a rule is tried on
sample calls of every type that the tool's schema admits. A rule that ends in a type
error or in no truth value on all of them would do so on every call: it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

from pydantic import JsonValue

from twokey.gateway.approvals.precedents import MOST_KEPT
from twokey.gateway.policy.cel_tokens import operands, tokens, written
from twokey.gateway.policy.expressions import (
    MAX_WORK,
    Expression,
    compiled,
    scope,
    value_of,
)
from twokey.gateway.policy.hours import utc
from twokey.gateway.policy.name_check import RECENT, SAME
from twokey.gateway.policy.rules import Policy
from twokey.gateway.policy.schema_lookup import Shape, shape_at
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.validation_errors import near

AMOUNTS = frozenset({"number", "integer", "string"})
"""What can be added up; text, because money is often written as decimal text."""

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
    """Return why a tool's schema does not fit a path, or None when it may.

    Args:
        schema: the tool's.
        source: such as ``args.card.number``.
        kinds: the JSON types that are of use; None for all.
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
    """Return why a rule of a tool could never be checked, or None when it may."""
    expression = compiled(source)
    for window in expression.windows:
        rule = policy.windows.get(window)
        if rule is None:
            return f"there is no window {window!r}; {near(window, policy.windows)}"
        if not rule.covers(tool):
            text = f"the window {window!r} does not count {tool!r}; add it to "
            return f"{text}'windows.{window}.tools'."
    for path in expression.paths:
        shape = shape_at(schema, path) if schema is not None else Shape()
        if shape.missing:
            return f"args.{'.'.join(path)}: the tool {shape.missing}"
    # Each operand alone: true || (what never works) works by the first of the two.
    parts = [written(row) for row in operands(tokens(source))]
    asked = [source] if len(parts) == 1 else [*parts, source]
    found = (_type_problem(policy, compiled(part), schema) for part in asked)
    return next((problem for problem in found if problem), None)


def _type_problem(
    policy: Policy, expression: Expression, schema: JsonObject | None
) -> str | None:
    rows = list(islice(_samples(expression, schema), _MOST_SAMPLES + 1))
    # Too many combinations to try: unknown is no mistake here, and the rule raises if
    # it fails on a call.
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
        except Exception:  # noqa: BLE001 - the library raises what it likes; of arguments, only a type error is certain for every call
            if "args" in expression.reads:
                return None
            problem = f"{expression.source!r} fails on every call; remove it."
            continue
        # One sample on which it works is enough: a rule is refused only if it can never
        # work.
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
        # A path that goes on as another one is made by that one: args.a is there with
        # args.a.b.
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
    """Make one value that a schema admits, as far as its types say, of bounded size."""

    def __init__(self, root: JsonObject, samples: dict[str, JsonValue]) -> None:
        self._root = root
        self._samples = samples
        self._left = _MOST_VALUES

    def one(self, shape: Shape, kind: str, level: int) -> JsonValue:
        """Make a value of one kind."""
        # Over the whole value, because a schema that refers to itself branches at each
        # level.
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
