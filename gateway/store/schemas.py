"""Store of the parts that records share, each under its digest: schemas above all.

A part is kept while an approval that names it is open, and then as long as the last of
them: `open.lua` counts the open ones, and the step that ends one counts it out. Until
format 13 only a schema was shared, under a digest of its own kind.
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

SHARED_TAG = "twokey/v1/shared"
_SCHEMA_TAG = "twokey/v1/schema"
_MOST_KNOWN = 512

Parts = Mapping[str, JsonObject]
"""Shared parts by their digests."""


def shared_digest(text: str) -> str:
    """Return the digest that a shared part of this text is stored under."""
    # Of this text and not of canonical JSON: a schema may hold numbers that the
    # canonical form refuses, and a form shows its fields in the schema's order.
    return digest.tagged_hash(SHARED_TAG, text.encode("utf-8"))


class SchemaStore:
    """Shared parts of all shards.

    What was read once is kept in memory: what stands under a digest never changes.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._known = OrderedDict[str, JsonObject]()

    async def read(self, keys: Keys, digests: Iterable[str]) -> dict[str, JsonObject]:
        """Return those of these parts that are there and are what they should be.

        A schema of format 13 is returned as a part that has nothing else.
        """
        wanted = dict.fromkeys(digests)
        missing = [one for one in wanted if one not in self._known]
        # A copy: another task may push some of them out while this one reads.
        found = {one: self._known[one] for one in wanted if one in self._known}
        if missing:
            bodies = await self._conn.transaction(
                *(["HGET", keys.schema(one), "body"] for one in missing)
            )
            for one, body in zip(missing, bodies, strict=True):
                if isinstance(body, bytes) and (part := _part(one, body)) is not None:
                    found[one] = part
        for one, part in found.items():
            self._known[one] = part
            self._known.move_to_end(one)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return found


def _part(name: str, body: bytes) -> JsonObject | None:
    # A damaged body has another digest, whatever it is read as.
    text = body.decode("utf-8", "replace")
    if shared_digest(text) == name:
        return cast("JsonObject", json.loads(body))
    if digest.tagged_hash(_SCHEMA_TAG, text.encode("utf-8")) == name:
        return {"args_schema": cast("JsonObject", json.loads(body))}
    return None
