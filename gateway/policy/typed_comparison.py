"""Compare values in rules by type; comparing values of different types is an error.

CEL says that ``"3" == 3`` is false, so a rule would pass over an argument that a tool
reads as 3. The library cannot be told otherwise, so an expression is compiled with
calls of functions of ours in the place of ``==``, ``!=`` and ``in``; these fail where
types differ, and a rule that fails raises. ``<`` and its like fail in the library.

All relations of CEL have one precedence, and only ``&&``, ``||``, ``?:``, commas and
brackets bind less: so their operands can be told from the tokens alone.
https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import cast

from twokey.gateway.policy.cel_tokens import Kind, Row, Token, closing, elements

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
_PLAIN = frozenset({bool, float, int, str})
"""Types of which Python compares two values as CEL does: most of what is compared."""

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

# The library writes a warning for each function that fails; the evaluation names the
# rule instead, and a sample call of `twokey policy check` fails on purpose.
logging.getLogger("cel").setLevel(logging.CRITICAL)


class MixedTypes(TypeError):
    """Two values of different types were compared; the text names the types."""


class Comparisons:
    """The functions that compare, and what they could not compare last.

    The library turns every exception of a function into one of its own, so that what
    happened is taken down here.
    """

    def __init__(self) -> None:
        self.mixed: MixedTypes | None = None

    @property
    def functions(self) -> dict[str, Callable[..., bool]]:
        """Return the functions under the names that `typed` writes."""
        return {
            EQUAL: self._noting(_equal),
            WITHIN: self._noting(_within),
            WITHIN_OR_NULL: self._noting(_within_or_null),
        }

    def _noting(
        self, compare: Callable[[object, object], bool]
    ) -> Callable[[object, object], bool]:
        def noted(left: object, right: object) -> bool:
            try:
                return compare(left, right)
            except MixedTypes as error:
                # Kept aside, because the library replaces what a function raises by an
                # error of its own.
                self.mixed = error
                raise

        return noted


def typed(row: Row) -> Row:
    """Return an expression's tokens with its comparisons made by type.

    ``x == null`` stays as it is: a rule that writes null asks whether there is a value,
    of whatever type. Elsewhere null is a type of its own.
    """
    found: list[Token] = []
    operand: list[Row] = []
    for atom in _atoms(row):
        # A bracket is one atom of several tokens, so a comma inside it separates
        # nothing here.
        if atom[0] in _LOOSER and len(atom) == 1:
            found += (*_compared(operand), *atom)
            operand = []
        else:
            operand.append(atom)
    return (*found, *_compared(operand))


def _atoms(row: Row) -> Iterator[Row]:
    """Yield tokens one by one, and brackets whole, with what they hold made typed."""
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
        return _contained(left, flat, right)
    return (*left, sign, *flat)


def _contained(left: Row, flat: Row, right: list[Row]) -> Row:
    """Return ``left in right``; a null that is written in a list stands for itself."""
    is_list = len(right) == 1 and flat[0].text == "["
    listed = list(elements(flat[1:-1])) if is_list else []
    if (_NULL,) not in listed:
        return _call(WITHIN, left, flat)
    rest = [one for one in listed if one != (_NULL,)]
    kept = tuple(token for one in rest for token in (*one, _COMMA))[:-1]
    return _call(WITHIN_OR_NULL, left, (flat[0], *kept, flat[-1]))


def _call(name: str, left: Row, right: Row) -> Row:
    opening, closing = Token(Kind.SYMBOL, "("), Token(Kind.SYMBOL, ")")
    return (Token(Kind.NAME, name), opening, *left, _COMMA, *right, closing)


def _equal(left: object, right: object) -> bool:
    """Return whether two values are equal.

    Raises:
        MixedTypes: when they, or two that stand in one place of both, differ in type.
    """
    # `type(...) is`: bool is a subclass of int, and CEL keeps them apart.
    if type(left) is type(right) and type(left) in _PLAIN:
        return left == right
    # Sorted: the sentence must not depend on which side stands first.
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
    # Each pair is looked at: a difference does not hide one of type.
    found = [_equal(left, right) for left, right in pairs]
    return all(found)


def _within(value: object, values: object) -> bool:
    """Return whether a list has a value, or an object a key.

    Raises:
        MixedTypes: when it is not found, and something there has another type.
    """
    if not isinstance(values, list | dict):
        raise MixedTypes(f"it looks into {_kind(values)} as into a list")
    listed = cast("list[object] | dict[object, object]", values)
    # The usual case in one step of Python's own; the loop below names what differs.
    if type(value) in _PLAIN and {*map(type, listed)} <= {type(value)}:
        return value in listed
    mixed: MixedTypes | None = None
    for each in listed:
        try:
            if _equal(value, each):
                return True
        except MixedTypes as error:
            mixed = error
    # Only when nothing equal was found: a list of mixed types still has what it has.
    if mixed is not None:
        raise mixed
    return False


def _within_or_null(value: object, values: object) -> bool:
    return value is None or _within(value, values)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    found = (name for types, name in _KINDS if isinstance(value, types))
    return next(found, "a value that it does not know")
