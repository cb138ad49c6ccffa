"""Store of JSON Schemas that records share, each under its digest.

A schema is kept while an approval that names it is open, and then as long as the last
of them: `open.lua` counts the open ones, and the step that ends one counts it out.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import cast

from twokey.gateway.protocol import digest
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.keys import Keys

SCHEMA_TAG = "twokey/v1/schema"
_MOST_KNOWN = 512

Schemas = Mapping[str, JsonObject]
"""Schemas by their digests."""


def schema_text(schema: JsonObject) -> str:
    """Return the text of a schema that is stored; the order of its members counts."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def schema_digest(text: str) -> str:
    """Return the digest that a schema of this text is stored under."""
    # Of this text and not of canonical JSON: a schema may hold numbers that the
    # canonical form refuses, and a form shows its fields in the schema's order.
    return digest.tagged_hash(SCHEMA_TAG, text.encode("utf-8"))


class SchemaStore:
    """Schemas of all shards.

    What was read once is kept in memory: what stands under a digest never changes.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._known = OrderedDict[str, JsonObject]()

    async def read(self, keys: Keys, digests: Iterable[str]) -> dict[str, JsonObject]:
        """Return those of these schemas that are there and are what they should be."""
        wanted = dict.fromkeys(digests)
        missing = [one for one in wanted if one not in self._known]
        # A copy: another task may push some of them out while this one reads.
        found = {one: self._known[one] for one in wanted if one in self._known}
        if missing:
            bodies = await self._conn.transaction(
                *(["HGET", keys.schema(one), "body"] for one in missing)
            )
            for one, body in zip(missing, bodies, strict=True):
                if isinstance(body, bytes) and schema_digest(_text(body)) == one:
                    found[one] = cast("JsonObject", json.loads(body))
        for one, schema in found.items():
            self._known[one] = schema
            self._known.move_to_end(one)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return found


def _text(body: bytes) -> str:
    # A damaged body has another digest, whatever it is read as.
    return body.decode("utf-8", "replace")
