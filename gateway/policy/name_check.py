"""Check an expression's names against allow-lists, so that typos fail at load."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import takewhile
from types import ModuleType

from keyturn.gateway.approvals.precedents import MOST_KEPT
from keyturn.gateway.policy import hours
from keyturn.gateway.policy.cel_tokens import (
    Call,
    Kind,
    Row,
    Token,
    calls,
    chains,
    following,
    literal,
)
from keyturn.gateway.protocol.schema_validation import matches
from keyturn.gateway.validation_errors import near

MACROS = frozenset({"all", "exists", "exists_one", "filter"})
"""The macros for lists; ``map`` is not allowed, because it could build huge lists."""

CALL = ("agent", "effect", "tool")
"""The members of ``call``."""


def cel() -> ModuleType:
    """Return the CEL library.

    Imported only for a policy with expressions. Its package also imports a command
    line for people, which takes 0.15 s and 8 MB. An empty module in its place avoids
    that; nothing else of the package uses it.
    """
    sys.modules.setdefault("cel.cli", ModuleType("cel.cli"))
    return import_module("cel")


SAME = ("same_done_24h", "same_rejected_24h")
"""The members of ``recent`` about earlier calls with the same effect."""

RECENT = ("failures_1h", "rejections_in_row", "requests_10m", *SAME)
"""The members of ``recent``."""

_OURS = {"hour": 2, "weekday": 2, "off_hours": 3}
_FUNCTIONS = frozenset(
    {"double", "duration", "dyn", "has", "int", "size", "string", "timestamp"}
    | _OURS.keys()
)
_RANGES = {"hour": range(24), "weekday": range(1, 8)}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "in": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_METHODS = MACROS | frozenset(
    {"contains", "endsWith", "matches", "size", "startsWith"}
    | {"getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear"}
    | {"getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds"}
)


def check_names(row: Row, named: frozenset[str], roots: frozenset[str]) -> None:
    """Check every name of an expression that compiles.

    Args:
        row: its tokens.
        named: the variables that the library found, including those of macros.
        roots: the allowed variables.

    Raises:
        ValueError: with the mistake and its correction.
    """
    found = tuple(calls(row))
    for call in found:
        _check_call(call)
        if call.name in _RANGES:
            behind = following(row, call)
            _check_range(call.name, _RANGES[call.name], behind)
    bound = {_bound(call) for call in found if call.is_method and call.name in MACROS}
    # `args.exists(args, …)` would read an element under the name of the arguments.
    for name in sorted(bound & roots):
        raise ValueError(f"{name!r} is taken; give the macro's variable another name")
    for name in sorted(named - bound - roots):
        raise ValueError(f"there is no {name!r}; {near(name, roots)}")
    for root, members in (("call", CALL), ("recent", RECENT), ("windows", ())):
        _check_members(row, root, members)
    for at, token in enumerate(row[:-1]):
        is_name = token.kind is Kind.NAME and token.text != "in"
        if is_name and row[at + 1].text == "{":
            raise ValueError(f"there is no type {token.text!r} to make")


def _bound(call: Call) -> str:
    first = call.args[0] if call.args else ()
    return first[0].text if first else ""


def _check_call(call: Call) -> None:
    known = _METHODS if call.is_method else _FUNCTIONS
    if call.name not in known:
        if call.name in _OURS:
            raise ValueError(f"write {call.name}(now, …), not now.{call.name}(…)")
        kind = "method" if call.is_method else "function"
        raise ValueError(f"there is no {kind} {call.name!r}; {near(call.name, known)}")
    if call.name in _OURS:
        _check_hours(call)
    if call.is_method and call.name.startswith("get") and call.args:
        text = f"{call.name}() takes no time zone and returns UTC; write "
        raise ValueError(f"{text}hour(now, 'Europe/London') or weekday(…)")
    if call.name == "matches":
        _check_pattern(call)


def _check_hours(call: Call) -> None:
    if len(call.args) != _OURS[call.name]:
        more = ", '08:00-18:00'" if call.name == "off_hours" else ""
        raise ValueError(f"write {call.name}(now, 'Europe/London'{more})")
    hours.zone(_plain(call, 1, "time zone", "'Europe/London'"))
    if call.name == "off_hours":
        hours.span(_plain(call, 2, "span of hours", "'08:00-18:00'"))


def _check_range(name: str, known: range, behind: Row) -> None:
    """Refuse a comparison of an hour, a weekday or a count that is never true."""
    sign, *rest = (*behind, Token(Kind.SYMBOL, ""))
    compare = _COMPARE.get(sign.text, _COMPARE["!="])
    listed = takewhile(lambda one: one.text != "]", rest)
    for token in listed if sign.text == "in" else rest[:1]:
        is_number = token.kind is Kind.NUMBER
        if is_number and not any(compare(each, float(token.text)) for each in known):
            first = " (Monday)" if name == "weekday" else ""
            raise ValueError(
                f"{name} is {known[0]}{first} to {known[-1]}, so it is never "
                f"{sign.text} {token.text}"
            )


def _check_pattern(call: Call) -> None:
    pattern = _plain(call, 0, "pattern", r"r'^\s*\d+'")
    try:
        matches("", pattern)
    except ValueError as error:
        text = f"{pattern!r} is not a regular expression (RE2 syntax)"
        raise ValueError(text) from error


def _plain(call: Call, index: int, what: str, example: str) -> str:
    words = call.args[index] if index < len(call.args) else ()
    value = literal(words[0]) if len(words) == 1 else None
    if value is None:
        # '\b' is a backspace in CEL, so a pattern with it would never match.
        text = f"the {what} of {call.name!r} has to be written out, as in {example}"
        raise ValueError(text)
    return value


def _check_members(row: Row, root: str, known: Sequence[str]) -> None:
    """Check each member that is read of a root; any name is a window's."""
    for at, path in chains(row, root):
        if len(path) != 1:
            text = f"{root!r} is read by name; write {root}.{(*known, '<name>')[0]}"
            raise ValueError(text)
        if known and path[0] not in known:
            raise ValueError(f"{root!r} has no {path[0]!r}; {near(path[0], known)}")
        # Only `recent`, a dot and the name: an index in brackets is not checked.
        if root == "recent" and path[0] in SAME and row[at + 1].text == ".":
            _check_range(f"recent.{path[0]}", range(MOST_KEPT + 1), row[at + 3 :])
