"""Write JSON that stands in texts of arguments as the tool's schema writes it.

A tool may take JSON as text (pydantic's ``Json[...]``), which is shown and hashed
without blanks. Who edits it writes blanks as people do, and the tool would not run with
another text than the one that its schema writes.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import cast

from pydantic import JsonValue

from twokey.gateway.errors import BadJson
from twokey.gateway.protocol import strict_json
from twokey.gateway.protocol.strict_json import JsonObject

_MAX_REFERENCES = 20
_JSON = "application/json"
_OFFERED = ("anyOf", "oneOf", "allOf")


def compacted(
    schema: JsonObject | None, before: JsonObject, after: JsonObject
) -> JsonObject:
    """Return edited arguments whose texts that are declared as JSON have no blanks.

    A text stays that was not changed, that was spelled otherwise before, that is no
    strict JSON, that has a number of more digits than are kept, or that may be another
    text as well.

    Args:
        schema: JSON Schema of the arguments; None declares nothing.
        before: the arguments that were edited.
        after: as a person wrote them.
    """
    if schema is None:
        return after
    return cast("JsonObject", _compacted(schema, [schema], before, after))


def _compacted(
    schema: JsonObject, nodes: list[JsonValue], before: JsonValue, after: JsonValue
) -> JsonValue:
    if before == after and type(before) is type(after):
        return after
    found = _alternatives(schema, nodes)
    if isinstance(after, str):
        had_blanks = isinstance(before, str) and _compact_text(before) != before
        return _without_blanks(after) if _is_json(found) and not had_blanks else after
    if isinstance(after, dict):
        was = before if isinstance(before, dict) else {}
        return {
            key: _compacted(schema, _members(found, key), was.get(key), one)
            for key, one in after.items()
        }
    if isinstance(after, list):
        items = [one.get("items") for one in found]
        rows = before if isinstance(before, list) else []
        return [
            _compacted(schema, items, rows[at] if at < len(rows) else None, one)
            for at, one in enumerate(after)
        ]
    return after


def _alternatives(schema: JsonObject, nodes: list[JsonValue]) -> list[JsonObject]:
    """Return parts of a schema, with what they refer to and offer instead."""
    found, waiting = list[JsonObject](), [*nodes]
    while waiting and len(found) < _MAX_REFERENCES:
        node = waiting.pop()
        if not isinstance(node, dict):
            continue
        found.append(node)
        name = str(node.get("$ref", "")).removeprefix("#/$defs/")
        waiting.append(cast("JsonObject", schema.get("$defs") or {}).get(name))
        for offered in _OFFERED:
            waiting += cast("list[JsonValue]", node.get(offered) or [])
    return found


def _members(found: list[JsonObject], key: str) -> list[JsonValue]:
    declared = [cast("JsonObject", one.get("properties") or {}) for one in found]
    named = [one[key] for one in declared if key in one]
    return named or [one.get("additionalProperties") for one in found]


def _is_json(found: list[JsonObject]) -> bool:
    texts = [one for one in found if _takes_texts(one)]
    return bool(texts) and all(one.get("contentMediaType") == _JSON for one in texts)


def _takes_texts(one: JsonObject) -> bool:
    kinds = one.get("type")
    if isinstance(kinds, str | list):
        return "string" in kinds
    # Without a type it is whatever it refers to or offers, else anything.
    return not any(name in one for name in ("$ref", *_OFFERED))


def _without_blanks(text: str) -> str:
    compact = _compact_text(text)
    # Only blanks may go: a tool that reads the text itself reads each digit.
    is_same = compact == text or _exact(compact) == _exact(text)
    return compact if is_same else text


def _compact_text(text: str) -> str:
    try:
        value = strict_json.parse(text)
    except BadJson:
        return text
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _exact(text: str) -> object:
    return json.loads(text, parse_float=_digits)


def _digits(number: str) -> Decimal | str:
    try:
        return Decimal(number)
    except InvalidOperation:  # an exponent of twenty digits
        return number
