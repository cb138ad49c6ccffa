"""Split what many records have in common from each of them, and join it again.

What a policy says of calls of one tool is the same for most of them: which people it
takes, what they may say, the schema. That part is stored once, under its digest (see
`schemas`), and each record names it by its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.store.schemas import shared_digest

PLACE = "shared"
"""Name of an item's place in the parts that its record names."""

SCHEMA = "args_schema"
"""The only part that was shared until format 13, where its name held the place."""

# Nothing that is made of arguments, or of a moment: few parts are to serve many calls.
_OF_RECORD = ("policy_digest", "channel")
_OF_ITEM = (
    *("tool", "tier", "requirement", "allow", "authorization_ms", SCHEMA),
    *("redact", "totals", "formats", "requires_reason", "asks_on_failure"),
    *("effect_class", "idempotent", "is_question", "is_standing", "can_cover"),
)

Shared = Mapping[int, JsonObject]
"""Shared parts by their place in a record."""


def split(record: JsonObject, rows: list[JsonObject]) -> dict[str, str]:
    """Take out of a record, and of the rows of its items, what others share.

    Returns:
        The texts to store by their digests, in the order of their places.
    """
    of_record = {name: record.pop(name) for name in _OF_RECORD if name in record}
    texts = dict[str, int]()
    for row in rows:
        part = {name: row.pop(name) for name in _OF_ITEM if name in row}
        text = json.dumps(of_record | part, ensure_ascii=False, separators=(",", ":"))
        row[PLACE] = texts.setdefault(text, len(texts))
    return {shared_digest(text): text for text in texts}


def joined(row: JsonObject, shared: Shared) -> JsonObject:
    """Return the row of an item with what it shares.

    Raises:
        KeyError: when that is not there: without it an edit would be checked against
            nothing.
    """
    if isinstance(place := row.get(PLACE), int):
        kept = {name: one for name, one in row.items() if name != PLACE}
        return {**_named(shared[place], _OF_ITEM), **kept}
    if isinstance(place := row.get(SCHEMA), int):
        return {**row, SCHEMA: shared[place][SCHEMA]}
    return row


def of_record(shared: Shared) -> JsonObject:
    """Return what a record itself shares; nothing before format 14."""
    return _named(shared[0], _OF_RECORD) if shared else {}


def _named(part: JsonObject, names: tuple[str, ...]) -> JsonObject:
    return {name: part[name] for name in names if name in part}
