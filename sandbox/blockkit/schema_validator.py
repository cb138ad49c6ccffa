"""Validate a payload against a schema; yield each violation with its JSON pointer."""

import math
from collections.abc import Mapping, Sequence
from typing import assert_never

from twokey.sandbox.blockkit.jsontypes import ReadOnlyJSON
from twokey.sandbox.blockkit.problem import Violation, Violations, step
from twokey.sandbox.blockkit.shape import (
    Choice,
    Flag,
    Many,
    Node,
    Nullable,
    Number,
    Record,
    Shape,
    Str,
    Tagged,
    Whole,
)

_SHOWN = 40


def violations(shape: Shape, value: ReadOnlyJSON, pointer: str = "") -> Violations:
    """Yield each place where `value` is not of `shape`, from the outside in.

    A record's own rules run only when its fields are sound. The walk goes no deeper
    than the shape does, so that hostile nesting costs nothing.
    """
    match shape:
        case Str():
            yield from _string(shape, value, pointer)
        case Choice():
            yield from _choice(shape, value, pointer)
        case Whole():
            yield from _whole(shape, value, pointer)
        case Number():
            yield from _number(shape, value, pointer)
        case Flag():
            yield from _flag(value, pointer)
        case Many():
            yield from _many(shape, value, pointer)
        case Record():
            yield from _record(shape, value, pointer)
        case Tagged():
            yield from _tagged(shape, value, pointer)
        case Nullable(inner):
            yield from () if value is None else violations(inner, value, pointer)
        case _:
            assert_never(shape)


def _string(shape: Str, value: ReadOnlyJSON, pointer: str) -> Violations:
    if not isinstance(value, str):
        yield Violation(pointer, f"must be a string, not {_name(value)}")
        return
    if not is_encodable(value):
        yield Violation(pointer, "holds a lone surrogate, which UTF-8 cannot carry")
    elif len(value) < shape.least:
        yield Violation(
            pointer, f"must have at least {shape.least} characters, has {len(value)}"
        )
    elif len(value) > shape.most:
        yield Violation(
            pointer, f"must have at most {shape.most} characters, has {len(value)}"
        )
    elif shape.form and (wanted := shape.form(value)):
        yield Violation(pointer, f"must be {wanted}")


def _choice(shape: Choice, value: ReadOnlyJSON, pointer: str) -> Violations:
    if not isinstance(value, str) or value not in shape.words:
        yield Violation(
            pointer, f"must be one of {_listed(shape.words)}, not {_shown(value)}"
        )


def _flag(value: ReadOnlyJSON, pointer: str) -> Violations:
    if not isinstance(value, bool):
        yield Violation(pointer, f"must be true or false, not {_name(value)}")


def _whole(shape: Whole, value: ReadOnlyJSON, pointer: str) -> Violations:
    if not isinstance(value, int) or isinstance(value, bool):
        yield Violation(pointer, f"must be an integer, not {_name(value)}")
    elif value < shape.least:
        yield Violation(pointer, f"must be at least {shape.least}, is {value}")
    elif shape.most is not None and value > shape.most:
        yield Violation(pointer, f"must be at most {shape.most}, is {value}")


def _number(shape: Number, value: ReadOnlyJSON, pointer: str) -> Violations:
    if not isinstance(value, int | float) or isinstance(value, bool):
        yield Violation(pointer, f"must be a number, not {_name(value)}")
    elif not _is_finite(value):
        yield Violation(pointer, "must be a finite number")
    elif shape.is_positive and value <= 0:
        yield Violation(pointer, f"must be greater than 0, is {value}")


def _many(shape: Many, value: ReadOnlyJSON, pointer: str) -> Violations:
    if isinstance(value, str) or not isinstance(value, Sequence):
        yield Violation(pointer, f"must be an array, not {_name(value)}")
        return
    if len(value) < shape.least:
        yield Violation(
            pointer, f"must have at least {shape.least} items, has {len(value)}"
        )
    if shape.most is not None and len(value) > shape.most:
        yield Violation(
            pointer, f"must have at most {shape.most} items, has {len(value)}"
        )
        return
    for index, item in enumerate(value):
        yield from violations(shape.item, item, step(pointer, index))


def _record(
    shape: Record, value: ReadOnlyJSON, pointer: str, tag: frozenset[str] = frozenset()
) -> Violations:
    if not isinstance(value, Mapping):
        yield Violation(pointer, f"must be an object, not {_name(value)}")
        return
    found = [*_keys(shape, value, pointer, tag)]
    for key, inner in (*shape.required.items(), *shape.optional.items()):
        if key in value:
            found += violations(inner, value[key], step(pointer, key))
    yield from found
    if not found:
        for rule in shape.rules:
            yield from (violation.below(pointer) for violation in rule(value))


def _keys(shape: Record, value: Node, pointer: str, tag: frozenset[str]) -> Violations:
    for key in shape.required:
        if key not in value:
            yield Violation(step(pointer, key), "is required and missing")
    known = shape.required.keys() | shape.optional.keys() | tag
    for key in value:
        if key not in known:
            yield Violation(
                step(pointer, key), f"unknown key; known are {_listed(sorted(known))}"
            )


def _tagged(shape: Tagged, value: ReadOnlyJSON, pointer: str) -> Violations:
    if not isinstance(value, Mapping):
        yield Violation(pointer, f"must be {shape.noun} object, not {_name(value)}")
        return
    kind = value.get("type")
    where = step(pointer, "type")
    if "type" not in value:
        yield Violation(where, "is required and missing")
    elif isinstance(kind, str) and kind in shape.variants:
        yield from _record(shape.variants[kind], value, pointer, frozenset({"type"}))
    elif isinstance(kind, str) and kind in shape.refused:
        yield Violation(where, shape.refused[kind])
    else:
        yield Violation(
            where,
            f"{_shown(kind)} is not {shape.noun} we know here; "
            f"known are {_listed(sorted(shape.variants))}",
        )


def is_encodable(text: str) -> bool:
    """Return whether a string survives the way to Slack as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no other reader of JSON can hold
        return False


def _shown(value: ReadOnlyJSON) -> str:
    """Show a word of Slack's vocabulary, or what stands there instead of one.

    Only ever used where a fixed word belongs: the other strings of a payload may be
    arguments of a tool call, and an error must not carry those into a log.
    """
    if not isinstance(value, str):
        return _name(value)
    return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}…"


def _name(value: ReadOnlyJSON) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
        case _:
            return "an array"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)
