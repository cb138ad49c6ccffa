"""Keep the tool definitions of other servers that people have approved.

A record is sealed: write access to the store is not enough to approve a definition. Its
version rises, so that a process refuses an older copy than it has seen. An older copy
that no process has seen has definitions that people approved before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol.http_api import Definitions
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.connection.connection import number
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.sealing import Repository, Sealed, write_if

MOST_SERVERS = 1000
"""Limit of servers of a tenant, over all agents."""

MAX_BYTES = 4 * 1024 * 1024
"""Largest record of a server."""


class DefinitionStore(Repository):
    """Approved definitions of all tenants, by agent and server."""

    async def read(self, keys: Keys, agent: str, server: str) -> Definitions:
        """Return the approved definitions of a server; none if there is no record.

        A record with an invalid seal, or an older one, is refused and reported: nothing
        of the server is approved then.
        """
        return (await self._read(keys, json.dumps([agent, server])))[0]

    async def approve(
        self, keys: Keys, agent: str, server: str, tools: Mapping[str, JsonObject]
    ) -> None:
        """Add definitions to the approved ones of a server, or replace them.

        Raises:
            NotAllowed: there are too many servers, or the record gets too large.
        """
        key, place = keys.definitions, json.dumps([agent, server])
        while True:
            known, stored = await self._read(keys, place)
            is_full = number(await self._conn.command("HLEN", key)) >= MOST_SERVERS
            changed = Definitions(
                version=known.version + 1, tools={**known.tools, **tools}
            )
            body = changed.model_dump_json().encode()
            if (is_full and not stored) or len(body) > MAX_BYTES:
                raise NotAllowed(
                    f"The definitions of the server {server!r} were not kept: a tenant "
                    f"has {MOST_SERVERS} servers at most, and each {MAX_BYTES} bytes."
                )
            sealed = self._sealing.sealed(Sealed.DEFINITIONS, (key, place), body)
            checks = [(["HGET", key, place], stored)]
            if await write_if(self._conn, keys, checks, ["HSET", key, place, sealed]):
                return

    async def _read(self, keys: Keys, place: str) -> tuple[Definitions, bytes]:
        key = keys.definitions
        stored = await self._conn.command("HGET", key, place)
        if not isinstance(stored, bytes):
            return Definitions(), b""
        body = self._sealing.opened(Sealed.DEFINITIONS, (key, place), stored)
        found = Definitions.model_validate_json(body) if body else None
        name = f"{key} {place}"
        is_older = found is not None and self._sealing.is_older(name, found.version)
        if found is None or is_older:
            await self._sealing.refuse(
                keys, Sealed.DEFINITIONS, stored, is_older=is_older, name=place
            )
            return Definitions(version=self._sealing.newest(name)), stored
        return found, stored
