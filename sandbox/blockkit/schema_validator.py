"""Validate a payload against a schema; return violations with JSON pointers."""

import math
from collections.abc import Mapping, Sequence
from typing import assert_never

from keyturn.sandbox.blockkit.jsontypes import ReadOnlyJSON
from keyturn.sandbox.blockkit.problem import Violation, step
from keyturn.sandbox.blockkit.shape import (
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
_TAG = ("type",)


_NOTHING: Sequence[Violation] = ()


def violations(shape: Shape, value: ReadOnlyJSON) -> Sequence[Violation]:
    """Return each place where `value` does not match `shape`, outermost first.

    A record's rules run only if its fields are valid. The walk is never deeper than the
    shape, so that hostile nesting has no cost. The bot validates each message that it
    sends, so pointers are built only for violations.
    """
    match shape:
        case Str():
            return _string(shape, value)
        case Tagged():
            return _tagged(shape, value)
        case Record():
            return _record(shape, value)
        case Many():
            return _many(shape, value)
        case Nullable(inner):
            return _NOTHING if value is None else violations(inner, value)
        case _:
            return _scalar(shape, value)


def _scalar(
    shape: Flag | Choice | Whole | Number, value: ReadOnlyJSON
) -> Sequence[Violation]:
    match shape:
        case Flag():
            return _flag(value)
        case Choice():
            return _choice(shape, value)
        case Whole():
            return _whole(shape, value)
        case Number():
            return _number(shape, value)
        case _:
            assert_never(shape)


def _one(message: str, *path: str | int) -> Sequence[Violation]:
    return [Violation("".join(step("", key) for key in path), message)]


def _string(shape: Str, value: ReadOnlyJSON) -> Sequence[Violation]:
    if not isinstance(value, str):
        return _one(f"must be a string, not {_name(value)}")
    if not is_encodable(value):
        return _one("contains a lone surrogate, which UTF-8 cannot encode")
    if len(value) < shape.least:
        return _one(f"must have at least {shape.least} characters, has {len(value)}")
    if len(value) > shape.most:
        return _one(f"must have at most {shape.most} characters, has {len(value)}")
    if shape.form and (wanted := shape.form(value)):
        return _one(f"must be {wanted}")
    return _NOTHING


def _choice(shape: Choice, value: ReadOnlyJSON) -> Sequence[Violation]:
    if not isinstance(value, str) or value not in shape.words:
        return _one(f"must be one of {_listed(shape.words)}, not {_shown(value)}")
    return _NOTHING


def _flag(value: ReadOnlyJSON) -> Sequence[Violation]:
    if not isinstance(value, bool):
        return _one(f"must be true or false, not {_name(value)}")
    return _NOTHING


def _whole(shape: Whole, value: ReadOnlyJSON) -> Sequence[Violation]:
    if not isinstance(value, int) or isinstance(value, bool):
        return _one(f"must be an integer, not {_name(value)}")
    if value < shape.least:
        return _one(f"must be at least {shape.least}, is {value}")
    if shape.most is not None and value > shape.most:
        return _one(f"must be at most {shape.most}, is {value}")
    return _NOTHING


def _number(shape: Number, value: ReadOnlyJSON) -> Sequence[Violation]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return _one(f"must be a number, not {_name(value)}")
    if not _is_finite(value):
        return _one("must be a finite number")
    if shape.is_positive and value <= 0:
        return _one(f"must be greater than 0, is {value}")
    return _NOTHING


def _many(shape: Many, value: ReadOnlyJSON) -> Sequence[Violation]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return _one(f"must be an array, not {_name(value)}")
    found: list[Violation] = []
    if len(value) < shape.least:
        found += _one(f"must have at least {shape.least} items, has {len(value)}")
    if shape.most is not None and len(value) > shape.most:
        found += _one(f"must have at most {shape.most} items, has {len(value)}")
        return found
    for index, item in enumerate(value):
        if inside := violations(shape.item, item):
            found += _below(index, inside)
    return found


def _record(
    shape: Record, value: ReadOnlyJSON, tag: Sequence[str] = ()
) -> Sequence[Violation]:
    if not isinstance(value, Mapping):
        return _one(f"must be an object, not {_name(value)}")
    found = _keys(shape, value, tag)
    for fields in (shape.required, shape.optional):
        for key, inner in fields.items():
            if key in value and (inside := violations(inner, value[key])):
                found += _below(key, inside)
    if not found:
        found = [one for rule in shape.rules for one in rule(value)]
    return found


def _keys(shape: Record, value: Node, tag: Sequence[str]) -> list[Violation]:
    found: list[Violation] = []
    for key in shape.required:
        if key not in value:
            found += _one("is required and missing", key)
    for key in value:
        if not (key in shape.required or key in shape.optional or key in tag):
            known = sorted({*shape.required, *shape.optional, *tag})
            found += _one(f"unknown key; known are {_listed(known)}", key)
    return found


def _tagged(shape: Tagged, value: ReadOnlyJSON) -> Sequence[Violation]:
    if not isinstance(value, Mapping):
        return _one(f"must be {shape.noun} object, not {_name(value)}")
    kind = value.get("type")
    if isinstance(kind, str) and kind in shape.variants:
        return _record(shape.variants[kind], value, _TAG)
    if "type" not in value:
        return _one("is required and missing", "type")
    if isinstance(kind, str) and kind in shape.refused:
        return _one(shape.refused[kind], "type")
    return _one(
        f"{_shown(kind)} is not {shape.noun} we know here; "
        f"known are {_listed(sorted(shape.variants))}",
        "type",
    )


def _below(key: str | int, inside: Sequence[Violation]) -> list[Violation]:
    return [one.below(step("", key)) for one in inside]


def is_encodable(text: str) -> bool:
    """Return True if a string can be sent to Slack as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for other JSON readers
        return False


def _shown(value: ReadOnlyJSON) -> str:
    """Return a word of Slack's vocabulary, or its wrong replacement, for an error.

    Used only for fields with fixed words: other strings of a payload may be arguments
    of a tool call, which must not get into a log.
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
