"""API keys of agents: what a key may do, and how a presented one is checked.

A key is ``tk_<id>_<secret>``. What is kept of it is its id, a hash of the secret with a
key of the gateway's own (so that a copy of the list is of no use), what it may do, and
until when. No key can decide about a call.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import NamedTuple

from pydantic import AwareDatetime, Field

from twokey.gateway.protocol.http_api import Scope
from twokey.gateway.protocol.records import Record

_TEXT = re.compile(r"tk_([0-9a-f]{16})_([0-9a-f]{64})", re.ASCII)
_ID_BYTES, _SECRET_BYTES = 8, 32


class ApiKey(Record):
    """What is kept of a key; empty ``agents`` or ``tools`` are none, "*" is all."""

    id: str
    name: str
    tenant: str
    agents: frozenset[str]
    tools: frozenset[str] = frozenset({"*"})
    scopes: frozenset[Scope] = frozenset(Scope)
    created_at: AwareDatetime
    expires_at: AwareDatetime
    hash: str = Field(repr=False)

    def may_be(self, agent: str) -> bool:
        """Return whether the key speaks for an agent."""
        return bool(self.agents & {agent, "*"})

    def may_use(self, tool: str) -> bool:
        """Return whether the key may propose and run calls of a tool."""
        return bool(self.tools & {tool, "*"})


class NewKey(NamedTuple):
    """A new key: what is kept, and the text that is shown once."""

    kept: ApiKey
    text: str


def new_api_key(
    pepper: bytes,
    *,
    name: str,
    tenant: str,
    agents: Collection[str],
    now: datetime,
    expires_at: datetime,
    tools: Collection[str] = ("*",),
    scopes: Collection[Scope] = tuple(Scope),
) -> NewKey:
    """Make a key.

    Args:
        pepper: the gateway's key for hashes of API keys.
        name: for people who read the list.
        tenant: whose agents it speaks for.
        agents: their names, "*" for all.
        now: the time.
        expires_at: when it ends.
        tools: names of those whose calls it may propose and run, "*" for all.
        scopes: what it may do.
    """
    id_ = secrets.token_hex(_ID_BYTES)
    secret = secrets.token_hex(_SECRET_BYTES)
    kept = ApiKey(
        id=id_,
        name=name,
        tenant=tenant,
        agents=frozenset(agents),
        tools=frozenset(tools),
        scopes=frozenset(scopes),
        created_at=now,
        expires_at=expires_at,
        hash=_hash(pepper, id_, secret),
    )
    return NewKey(kept, f"tk_{id_}_{secret}")


class ApiKeys:
    """Checks presented keys.

    Args:
        pepper: the gateway's key for hashes of API keys.
        find: returns what is kept of a key by its id, None for one that is not.
        now: returns the time by the store's clock.
    """

    def __init__(
        self,
        pepper: bytes,
        find: Callable[[str], Awaitable[ApiKey | None]],
        now: Callable[[], Awaitable[datetime]],
    ) -> None:
        self._pepper = pepper
        self._find = find
        self._now = now

    async def check(self, text: str) -> ApiKey | None:
        """Return what a presented key may do; None when it is not valid now."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        id_, secret = found.groups()
        kept = await self._find(id_)
        # Compared also where there is none: the time must not tell which ids exist.
        expected = kept.hash if kept is not None else "0" * 64
        is_right = hmac.compare_digest(_hash(self._pepper, id_, secret), expected)
        if kept is None or not is_right or kept.id != id_:
            return None
        return kept if await self._now() < kept.expires_at else None


def _hash(pepper: bytes, id_: str, secret: str) -> str:
    # Keyed and fast: the secret has 256 random bits, so nothing can be guessed.
    return hmac.new(pepper, f"{id_}:{secret}".encode(), hashlib.sha256).hexdigest()
