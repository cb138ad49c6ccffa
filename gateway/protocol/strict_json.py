"""Parse strict JSON: duplicate keys and unsafe numbers are errors.

Accepted: UTF-8, objects without duplicate keys, finite numbers, integers of 64 bits,
nesting up to 64, strings without lone surrogates. Everything else is refused before
anything is stored, because two parsers could read it as two different calls (RFC 8785
sections 3.1 and 3.2.2). `keyturn.gateway.protocol.digest` bounds the size.

Integers beyond 2^53 are ids and keep all digits. RFC 8785 leaves them to the reader: a
reader that uses doubles for all numbers has to treat these as integers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Never, cast

from pydantic import JsonValue

from keyturn.gateway.errors import BadJson, InexactNumber


def pointer_to(tokens: Iterable[str | int]) -> str:
    """Return the pointer to a place; "" for the whole."""
    return "".join(f"/{escaped(str(token))}" for token in tokens)


def escaped(token: str) -> str:
    """Escape a name for a pointer."""
    # "~" first: otherwise the "~" of "~1" would be escaped again.
    return token.replace("~", "~0").replace("/", "~1")


def tokens_of(text: str) -> tuple[str, ...]:
    """Return the names in a pointer, which may begin with "#"."""
    # In the opposite order, so that "~01" is "~1" and not "/".
    return tuple(
        token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]
    )


def pointed(root: JsonValue, text: str) -> JsonValue:
    """Return the target of a pointer through objects; None if there is none."""
    for token in tokens_of(text):
        root = root.get(token) if isinstance(root, dict) else None
    return root


JsonObject = dict[str, JsonValue]

MAX_DEPTH = 64
MAX_BYTES = 64 * 1024
MAX_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 8785 section 3.2.2.3)."""
MAX_LONG = 2**63 - 1
"""The largest 64-bit integer, the limit of databases and checkpoints."""


def parse(text: bytes | str) -> JsonValue:
    """Parse one JSON document strictly.

    Raises:
        BadJson: for anything that is not strict JSON; names the place.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise BadJson("it is not UTF-8") from error
    try:
        value = cast(
            "JsonValue",
            json.loads(
                decoded,
                # json.loads keeps the last of two equal keys; other parsers keep the
                # first and would read a different call.
                object_pairs_hook=_without_duplicates,
                parse_constant=_no_constant,
            ),
        )
    except json.JSONDecodeError as error:
        raise BadJson(f"{error.msg} (character {error.pos})") from error
    except ValueError as error:  # Python's error for thousands of digits
        raise BadJson("it contains a number of too many digits") from error
    except RecursionError as error:
        raise BadJson(f"it is nested more than {MAX_DEPTH} deep") from error
    # Depth, integers and surrogates are checked in one place only, after parsing.
    return accept(value)


def parse_object(text: bytes | str) -> JsonObject:
    """Parse one strict JSON document that has to be an object.

    Raises:
        BadJson: when it is not strict JSON, or not an object.
    """
    value = parse(text)
    if not isinstance(value, dict):
        raise BadJson(f"an object is needed, not {_kind(value)}")
    return value


def accept(value: object) -> JsonValue:
    """Check a tree of Python values as strictly as a parsed text; return a copy.

    The copy shares no mutable value with the argument. Tuples, bytes, sets, non-string
    keys and numbers other than int and float are refused, not converted.

    Raises:
        BadJson: with the place and the problem, never the value.
    """
    return _accept(value, None, 0)


def accept_texts(*values: object) -> None:
    """Check that values are texts.

    Raises:
        BadJson: when one is not a text, or not strict JSON.
    """
    for value in values:
        if not isinstance(accept(value), str):
            raise BadJson(f"a text is needed, not {_kind(value)}")


def accept_object(value: object) -> JsonObject:
    """Check a tree whose root has to be an object.

    Raises:
        BadJson: as `accept`, or when the top is not an object.
    """
    if not isinstance(value, dict):
        raise BadJson(f"an object is needed, not {_kind(value)}")
    return cast("JsonObject", accept(cast("object", value)))


_Place = tuple["_Place", str | int] | None
"""A place in a tree: its parent's place and its name; None for the root."""


def _pointer(place: _Place) -> str:
    tokens: list[str | int] = []
    while place is not None:
        place, token = place
        tokens.append(token)
    return pointer_to(reversed(tokens))


def _accept(value: object, place: _Place, depth: int) -> JsonValue:
    if depth > MAX_DEPTH:
        raise BadJson(f"it is nested more than {MAX_DEPTH} deep", _pointer(place))
    # Texts first: most values are texts.
    if isinstance(value, str):
        return _accept_text(value, place)
    if isinstance(value, dict):
        return _accept_members(cast("dict[object, object]", value), place, depth)
    # bool before int: bool is a subclass of int.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _accept_number(value, place)
    if isinstance(value, list):
        elements = cast("list[object]", value)
        return [
            _accept(element, (place, index), depth + 1)
            for index, element in enumerate(elements)
        ]
    raise BadJson(f"{_kind(value)} is not JSON", _pointer(place))


def _accept_members(
    members: dict[object, object], place: _Place, depth: int
) -> JsonObject:
    result: JsonObject = {}
    for key, member in members.items():
        if not isinstance(key, str):
            raise BadJson(f"a key is {_kind(key)}, not a string", _pointer(place))
        own = (place, key)
        result[_accept_text(key, own)] = _accept(member, own, depth + 1)
    return result


def _accept_text(text: str, place: _Place) -> str:
    # An ASCII text has no surrogates.
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            problem = "a string contains half of a surrogate pair"
            raise BadJson(problem, printable(_pointer(place))) from error
    # A plain str, never a subclass.
    return str(text)


def _accept_number(number: float, place: _Place) -> int | float:
    # A plain number, never a subclass.
    if isinstance(number, int):
        if abs(number) > MAX_LONG:
            raise InexactNumber("an integer has more than 64 bits", _pointer(place))
        return int(number)
    if not math.isfinite(number):
        raise BadJson("a number is not finite", _pointer(place))
    # RFC 8785 writes 1e20 as digits, which other readers take for an integer.
    if abs(number) > MAX_INTEGER:
        raise InexactNumber(
            "a number is beyond 2^53-1 and not an integer", _pointer(place)
        )
    return float(number)


def _without_duplicates(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise BadJson("a key appears twice", f"/{escaped(twice)}")
    return members


def _no_constant(name: str) -> Never:
    raise BadJson(f"{name} is not JSON")


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def printable(text: str) -> str:
    """Return a string that can be stored: lone surrogates become question marks."""
    # A model may write one half of a pair; neither UTF-8 nor the store accepts it.
    return text.encode("utf-8", "replace").decode("utf-8")
