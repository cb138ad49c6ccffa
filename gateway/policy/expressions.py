"""Compile, check and evaluate the CEL expression of a rule.

The names that an expression may read are fixed (`ROOTS`), so that typos fail at load.
The arguments of a call are one tree below ``args``, so no argument can replace ``call``
or ``windows``. Every number of a call is a CEL ``double``, as CEL reads JSON: 50 and
50.0 are one call.

`ask` never raises. An `Answer` is true, false, or has a problem. The problem is fixed
text and quotes no value of the call.
"""

from __future__ import annotations

import logging
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial
from importlib import import_module
from itertools import takewhile
from types import ModuleType
from typing import Any, cast

from pydantic import JsonValue

from keyturn.gateway.approvals.evidence import HIDDEN
from keyturn.gateway.approvals.precedents import MOST_KEPT
from keyturn.gateway.failures import any_failure
from keyturn.gateway.policy import hours
from keyturn.gateway.policy.cel_tokens import (
    Call,
    Kind,
    Row,
    Token,
    calls,
    chains,
    closing,
    depth,
    elements,
    following,
    literal,
    tokens,
    written,
)
from keyturn.gateway.protocol.schema_validation import matches
from keyturn.gateway.protocol.strict_json import MAX_INTEGER, JsonObject
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


# Compare values in rules by type; comparing values of different types is an error.
#
# In CEL ``"3" == 3`` is false, so a rule would miss an argument that a tool reads as 3.
# The library has no switch for this. Therefore ``==``, ``!=`` and ``in`` are compiled
# as calls of the functions below. They fail if types differ, and a rule that fails
# raises the call. ``<`` and its like fail in the library.
#
# All relations of CEL have one precedence, and only ``&&``, ``||``, ``?:``, commas and
# brackets bind less, so the tokens alone show their operands.
# https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax

EQUAL, WITHIN, WITHIN_OR_NULL = "typed_equal", "typed_in", "typed_in_or_null"

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a truth value"),
    ((int, float), "a number"),
    (str, "a text"),
    (list, "a list"),
    (dict, "an object"),
    (datetime, "a time"),
    (timedelta, "a duration"),
    (bytes, "bytes"),
)

_NULL = Token(Kind.NAME, "null")
_COMMA = Token(Kind.SYMBOL, ",")
_LOOSER = frozenset(Token(Kind.SYMBOL, text) for text in ("?", ":", ",", "&&", "||"))
_IN = Token(Kind.NAME, "in")
_EQUALITIES = frozenset(Token(Kind.SYMBOL, text) for text in ("==", "!="))
_RELATIONS = _EQUALITIES | {
    _IN,
    *(Token(Kind.SYMBOL, s) for s in ("<", "<=", ">", ">=")),
}
_OPENING = frozenset(Token(Kind.SYMBOL, text) for text in "([{")

# The library logs a warning for each function that fails. The evaluation names the rule
# instead, and sample calls of `keyturn policy check` fail on purpose.
logging.getLogger("cel").setLevel(logging.CRITICAL)


class MixedTypes(TypeError):
    """Two values of different types were compared; the text names the types."""


def typed(row: Row) -> Row:
    """Return an expression's tokens with its comparisons made by type.

    ``x == null`` is unchanged: it checks whether there is a value of any type.
    Elsewhere null is a separate type.
    """
    found: list[Token] = []
    operand: list[Row] = []
    for atom in _atoms(row):
        # A bracket is one atom of several tokens, so commas inside it do not separate.
        if atom[0] in _LOOSER and len(atom) == 1:
            found += (*_compared(operand), *atom)
            operand = []
        else:
            operand.append(atom)
    return (*found, *_compared(operand))


def _atoms(row: Row) -> Iterator[Row]:
    """Yield single tokens, and whole brackets with typed comparisons inside."""
    at = 0
    while at < len(row):
        if row[at] not in _OPENING:
            yield (row[at],)
            at += 1
            continue
        end = closing(row, at)
        yield (row[at], *typed(row[at + 1 : end]), row[end])
        at = end + 1


def _compared(atoms: list[Row]) -> Row:
    """Return one operand of && or ||: a chain of relations, from left to right."""
    left: Row = ()
    sign: Token | None = None
    current: list[Row] = []
    for atom in (*atoms, None):
        if atom is not None and not (len(atom) == 1 and atom[0] in _RELATIONS):
            current.append(atom)
            continue
        left = _joined(left, sign, current)
        sign, current = (atom[0] if atom else None), []
    return left


def _joined(left: Row, sign: Token | None, right: list[Row]) -> Row:
    flat = tuple(token for atom in right for token in atom)
    if sign is None:
        return flat
    if sign in _EQUALITIES and (_NULL,) not in {left, flat}:
        call = _call(EQUAL, left, flat)
        return (Token(Kind.SYMBOL, "!"), *call) if sign.text == "!=" else call
    if sign == _IN:
        return _contained(left, flat)
    return (*left, sign, *flat)


def _contained(left: Row, right: Row) -> Row:
    """Return ``left in right``; a null written in a list matches null."""
    is_list = right[0].text == "[" and closing(right, 0) == len(right) - 1
    listed = list(elements(right[1:-1])) if is_list else []
    if (_NULL,) not in listed:
        return _call(WITHIN, left, right)
    kept = [(*one, _COMMA) for one in listed if one != (_NULL,)]
    flat = tuple(token for one in kept for token in one)[:-1]
    return _call(WITHIN_OR_NULL, left, (right[0], *flat, right[-1]))


def _call(name: str, left: Row, right: Row) -> Row:
    opening, closing = Token(Kind.SYMBOL, "("), Token(Kind.SYMBOL, ")")
    return (Token(Kind.NAME, name), opening, *left, _COMMA, *right, closing)


def _equal(left: object, right: object) -> bool:
    """Return whether two values are equal.

    Raises:
        MixedTypes: when they, or two values at the same place in both, differ in type.
    """
    # Sorted: the message must not depend on the order of the operands.
    kinds = sorted({_kind(left), _kind(right)})
    if len(kinds) > 1:
        raise MixedTypes(f"it compares {' with '.join(kinds)}")
    if isinstance(left, list) and isinstance(right, list):
        rows = cast("list[object]", left), cast("list[object]", right)
        is_as_long = len(rows[0]) == len(rows[1])
        return is_as_long and _all_equal(zip(*rows, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        one = cast("dict[object, object]", left)
        other = cast("dict[object, object]", right)
        if one.keys() != other.keys():
            return False
        return _all_equal((one[name], other[name]) for name in one)
    return left == right


def _all_equal(pairs: Iterable[tuple[object, object]]) -> bool:
    # Every pair is compared: a difference must not hide a type error.
    found = [_equal(left, right) for left, right in pairs]
    return all(found)


def _within(value: object, values: object) -> bool:
    """Return whether a list contains a value, or an object a key.

    Raises:
        MixedTypes: when it is not found, and an element has another type.
    """
    if not isinstance(values, list | dict):
        raise MixedTypes(f"it looks into {_kind(values)} as into a list")
    listed = cast("list[object] | dict[object, object]", values)
    mixed: MixedTypes | None = None
    for each in listed:
        try:
            if _equal(value, each):
                return True
        except MixedTypes as error:
            mixed = error
    # Only if nothing was equal: membership in a list of mixed types still works.
    if mixed is not None:
        raise mixed
    return False


def _kind(value: object) -> str:
    if value is None:
        return "null"
    found = (name for types, name in _KINDS if isinstance(value, types))
    return next(found, "a value of an unsupported type")


ROOTS = frozenset({"args", "call", "windows", "now", "requester", "recent"})
"""The names that an expression may read."""

MAX_SOURCE = 1000
"""Longest expression, in characters."""

MAX_WORK = 250_000
"""Most steps that an expression may take on one call.

The library has no limit. A macro such as ``exists`` reads every value of the arguments,
a macro inside it every pair, and ``+`` copies lists, so the steps are bounded before
the run. At this bound the slowest expressions found take 0.1 s.
"""

_MAX_DEPTH = 2

MAX_NESTING = 24
"""Deepest nesting of brackets.

The library compiles by recursion without a limit. At about a hundred levels it crashes
the whole process in a thread with a small stack.
"""

_MATCHES = "matches_quickly"
"""Replaces `matches`: the library compiles a pattern again for every text.

That takes up to a tenth of a second, and a macro passes many texts."""

_HAS = Token(Kind.NAME, "has")
_TOO_LONG = f"it could take too long; put at most {_MAX_DEPTH} macros inside another"


class BadExpression(ValueError):
    """An expression cannot be used in a rule; the text has the reason and a remedy."""


@dataclass(frozen=True)
class Expression:
    """A compiled expression, with the values it reads.

    Attributes:
        source: the source text.
        program: the compiled program of the library.
        reads: the names of `ROOTS` in it.
        paths: every path below ``args``, as names; without those used only by ``has``.
        members: (root, name) of the members it reads of ``call``, ``recent`` and
            ``windows``.
        depth: nesting depth of macros.
        literals: number of elements written out in it.
        additions: number of ``+`` in it.
    """

    source: str
    program: Any
    reads: frozenset[str]
    paths: tuple[tuple[str, ...], ...]
    members: tuple[tuple[str, str], ...]
    depth: int
    literals: int
    additions: int

    @property
    def windows(self) -> tuple[str, ...]:
        """Return the windows whose totals it reads."""
        return tuple(name for root, name in self.members if root == "windows")

    def work(self, size: int) -> int:
        """Return an upper bound of the steps on arguments of this size."""
        # A nested macro reads everything once for each element of the outer macro.
        passes = (size + self.literals) ** (self.depth + 1)
        return int(passes * (1 + self.additions))


@dataclass(frozen=True)
class Answer:
    """Whether a rule is true; with a ``problem`` the answer is unknown."""

    holds: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Scope:
    """The values that an expression reads, converted once for all rules of a call.

    ``mixed`` has the type errors of the last evaluation: the library replaces every
    exception of a function with a RuntimeError.
    """

    context: object
    mixed: list[MixedTypes]
    args: JsonObject
    size: int


@lru_cache(maxsize=4096)
def compiled(source: str) -> Expression:
    """Compile an expression and check every name in it.

    Raises:
        BadExpression: when it is no CEL, reads a name that does not exist, names a time
            zone that does not exist, or could take too long.
    """
    # All limits are checked before the library runs, which has none.
    if len(source) > MAX_SOURCE:
        text = f"it has {len(source)} characters; {MAX_SOURCE} is the limit"
        raise BadExpression(text)
    row = tokens(source)
    if depth(row) > MAX_NESTING:
        text = f"its brackets are nested more than {MAX_NESTING} deep; write it flatter"
        raise BadExpression(text)
    if depth(row, MACROS) > _MAX_DEPTH:
        raise BadExpression(_TOO_LONG)
    try:
        named = frozenset(cel().compile(source).variables())
    except Exception as error:
        raise BadExpression(_no_cel(source, row, error)) from error
    try:
        check_names(row, named, ROOTS)
    except ValueError as error:
        raise BadExpression(str(error)) from error
    expression = Expression(
        source=source,
        program=_compiled(row),
        reads=named & ROOTS,
        paths=_paths(row),
        members=_members(row),
        depth=depth(row, MACROS),
        literals=row.count(Token(Kind.SYMBOL, ",")),
        additions=row.count(Token(Kind.SYMBOL, "+")),
    )
    # Even on the smallest call, such a rule could never be checked.
    if expression.work(1) > MAX_WORK:
        raise BadExpression(_TOO_LONG)
    return expression


def scope(
    args: JsonObject, values: Mapping[str, object], *, holidays: tuple[str, ...] = ()
) -> Scope:
    """Convert the values that expressions read.

    Args:
        args: the arguments of the call.
        values: the other names of `ROOTS`; a missing name is unknown.
        holidays: days outside working hours.
    """
    mixed: list[MixedTypes] = []

    def noted(compare: Callable[[object, object], bool]) -> Callable[..., bool]:
        def compared(left: object, right: object) -> bool:
            try:
                return compare(left, right)
            except MixedTypes as error:
                mixed.append(error)
                raise

        return compared

    context = cel().Context(
        # `args` last: no other name can replace the arguments.
        {**values, "args": _as_doubles(args)},
        {
            "hour": hours.hour,
            "weekday": hours.weekday,
            "off_hours": partial(hours.off_hours, holidays=holidays),
            _MATCHES: matches,
            EQUAL: noted(_equal),
            WITHIN: noted(_within),
            WITHIN_OR_NULL: noted(lambda one, many: one is None or _within(one, many)),
        },
    )
    return Scope(context, mixed, args, _size(args))


def value_of(expression: Expression, where: Scope) -> object:
    """Return the value of an expression.

    Raises:
        MixedTypes: when it compares values of different types.
        Exception: any other error of the library.
    """
    # All rules of a call share one scope.
    where.mixed.clear()
    try:
        return cast("object", expression.program.execute(where.context))
    except RuntimeError as error:
        raise next(iter(where.mixed), error) from error


def ask(expression: Expression, where: Scope) -> Answer:
    """Return whether an expression is true; never raises."""
    # Before it runs: the library cannot be interrupted.
    if expression.work(where.size) > MAX_WORK:
        return Answer(problem="the call is too large for it")
    try:
        holds = value_of(expression, where)
    except any_failure() as error:  # after any error the answer is unknown
        return Answer(problem=_problem(expression, where.args, error))
    if not isinstance(holds, bool):
        return Answer(problem="it is neither true nor false")
    return Answer(holds=holds)


def value_at(args: JsonObject, path: tuple[str, ...]) -> JsonValue:
    """Return the value at a path below the arguments.

    Raises:
        LookupError: when it is missing.
    """
    node: JsonValue = args
    for name in path:
        if isinstance(node, dict):
            node = node[name]
        elif isinstance(node, list) and name.isascii() and name.isdigit():
            node = node[int(name)]
        else:
            raise LookupError(name)
    return node


def shown_at(args: JsonObject, path: tuple[str, ...]) -> JsonValue:
    """Return the value at a path of redacted arguments; `HIDDEN` below a hidden one.

    Raises:
        LookupError: when it is missing.
    """
    value: JsonValue = args
    for length in range(1, len(path) + 1):
        value = value_at(args, path[:length])
        if value == HIDDEN:
            break
    return value


def _is_missing(args: JsonObject, path: tuple[str, ...]) -> bool:
    try:
        value_at(args, path)
    except LookupError:
        return True
    return False


def _problem(expression: Expression, args: JsonObject, error: BaseException) -> str:
    missing = [path for path in expression.paths if _is_missing(args, path)]
    match error:
        case LookupError() if missing:
            return f"args.{'.'.join(missing[0])} is missing"
        case LookupError():
            return "a value that it reads is missing"
        case MixedTypes():
            return str(error)
        case TypeError():
            return "a value has another type than it expects"
        case _:
            return "it failed on these values"


def _compiled(row: Row) -> object:
    """Compile an expression with the functions above in place of the library's.

    Raises:
        BadExpression: when typed comparisons make it too deep.
    """
    places = {call.at for call in calls(row) if call.name == "matches"}
    ours = Token(Kind.NAME, _MATCHES)
    quick = (ours if at in places else token for at, token in enumerate(row))
    changed = typed(tuple(quick))
    if depth(changed) > MAX_NESTING:
        text = f"its comparisons are nested more than {MAX_NESTING} deep; "
        raise BadExpression(f"{text}write it flatter")
    return cast("object", cel().compile(written(changed)))


def _paths(row: Row) -> tuple[tuple[str, ...], ...]:
    found = [
        path
        for at, path in chains(row, "args")
        if path and not (at > 1 and row[at - 1].text == "(" and row[at - 2] == _HAS)
    ]
    return tuple(dict.fromkeys(found))


def _members(row: Row) -> tuple[tuple[str, str], ...]:
    found = [
        (root, path[0])
        for root in ("call", "recent", "windows")
        for _, path in chains(row, root)
    ]
    return tuple(dict.fromkeys(found))


def _as_doubles(value: JsonValue) -> object:
    match value:
        case list():
            return [_as_doubles(element) for element in value]
        case dict():
            return {name: _as_doubles(member) for name, member in value.items()}
        case int() | float() if not isinstance(value, bool):
            # As CEL reads JSON. An integer that a double would round stays an integer:
            # a rule compares it exactly or fails.
            return float(value) if abs(value) <= MAX_INTEGER else value
        case _:
            return value


def _size(value: JsonValue) -> int:
    """Count values; a long text counts more, because it is searched."""
    match value:
        case str():
            return 1 + len(value) // 64
        case list():
            return 1 + sum(_size(element) for element in value)
        case dict():
            return 1 + sum(len(name) // 64 + _size(one) for name, one in value.items())
        case _:
            return 1


def _no_cel(source: str, row: Row, error: Exception) -> str:
    """Describe a syntax error, with a hint at the likely cause."""
    text = str(error)
    _, found, after = text.partition("ERROR: <input>:")
    line = (after if found else text).partition("\n")[0]
    where = line.partition(" expecting {")[0].strip()
    names = {token.text for token in row if token.kind is Kind.NAME}
    hint = "write a comparison such as args.amount > 500"
    if "matches" in names and "\\" in source:
        hint = r"write a pattern with backslashes as r'…', such as r'^\s*\d+'"
    elif names & {"and", "or", "not"}:
        hint = "write && for and, || for or, ! for not"
    elif Token(Kind.SYMBOL, "=") in row:
        hint = "write == to compare"
    return f"{source!r} is no CEL (at {where}); {hint}"
