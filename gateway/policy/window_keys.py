"""Normalize the `by` value of a window into one aggregation key.

The key is what totals are kept under. Two resources that share a key by mistake are
only counted together, which can raise a call and never lowers one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

from pydantic import JsonValue

from twokey.gateway.approvals.invisible_characters import is_hidden
from twokey.gateway.errors import BadJson
from twokey.gateway.policy.schema_lookup import shape_at
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.strict_json import JsonObject

_NUMERIC = frozenset({"integer", "number"})

# What pydantic reads as a number when a string stands in its place: with a sign, with
# zeros, with underscores between digits.
# https://docs.pydantic.dev/latest/concepts/conversion_table/
_NUMBER = re.compile(
    r"[+-]?(?=\.?[0-9])[0-9_]*(?:\.[0-9_]*)?(?:e[+-]?[0-9]{1,3})?", re.ASCII
)
_NUMBER_BEGINS = frozenset("+-.0123456789")
_MAX_DIGITS = 300
"""A longer string is kept as it is."""


def window_key(
    value: JsonValue, schema: JsonObject | None = None, path: Sequence[str] = ()
) -> str:
    """Return a resource as the text under which its uses are added up.

    Spellings of one resource share a key: 7, ``"7"`` and ``" 7 "`` do, and so do
    upper and lower case, with invisible characters and without, also inside a list or
    an object. Where a number is declared, ``"07"``, ``"+7"`` and ``"7.0"`` do, too.

    Args:
        value: what names the resource.
        schema: JSON Schema of the arguments; None when nobody declares them.
        path: where the value stands below the arguments.

    Raises:
        ValueError: when the value names nothing.
    """
    # Nobody's total would be everybody's: the call is raised instead.
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        raise ValueError("names nobody")
    keyed = _keyed(value, schema, tuple(path))
    if keyed == "":
        raise ValueError("names nobody")
    return _canonical(keyed)


def _keyed(
    value: JsonValue, schema: JsonObject | None, path: tuple[str, ...]
) -> JsonValue:
    match value:
        case int() | float() if not isinstance(value, bool):
            return _text(_canonical(value))
        case str():
            text = _text(value)
            # What begins otherwise spells no number, whatever is declared.
            if schema is None or text[:1] not in _NUMBER_BEGINS:
                return text
            kinds = shape_at(schema, path).kinds
            is_number = bool(kinds) and kinds <= _NUMERIC | {"null"}
            return _number(text) if is_number else text
        case list():
            return [
                _keyed(one, schema, (*path, str(index)))
                for index, one in enumerate(value)
            ]
        case dict():
            return {
                name: _keyed(one, schema, (*path, name)) for name, one in value.items()
            }
        case _:
            return value


def _text(value: str) -> str:
    """Fold a string; one that is folded stays as it is."""
    # Most texts: NFKC leaves ASCII as it is, and nothing printable is invisible.
    if value.isascii() and value.isprintable():
        return " ".join(value.casefold().split())
    # What is invisible goes first: it would keep apart what belongs together.
    # Twice, because casefold can make characters that NFKC folds again, and a folded
    # text has to fold to itself.
    text = unicodedata.normalize("NFKC", _seen(value)).casefold()
    text = unicodedata.normalize("NFKC", _seen(unicodedata.normalize("NFKC", text)))
    return " ".join(text.split())


def _seen(text: str) -> str:
    # Most texts: of printable ASCII nothing is invisible, and a blank is a blank.
    if text.isascii() and text.isprintable():
        return text
    spaced = (" " if one.isspace() else one for one in text)
    return "".join(one for one in spaced if not is_hidden(one))


def _number(text: str) -> str:
    """Return the number that a folded text spells; the text when it spells none."""
    # Bounded before it is converted: int() of a Decimal writes out every digit.
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        return text
    number = Decimal(text.replace("_", ""))
    if number == number.to_integral_value():
        return str(int(number))
    return _text(_canonical(float(number)))


def _canonical(value: JsonValue) -> str:
    try:
        return digest.canonical(value).decode()
    except BadJson as error:
        raise ValueError("is not strict JSON") from error
