"""API keys of agents: their permissions, and their sealed records.

A key is ``tk_<id>_<secret>``. Its record has the id, the permissions, the expiry and a
keyed hash of the secret, so that a copy of the list is useless. The record is sealed
for its tenant and id: write access to the store is not enough to make a key or widen
one. No key can decide on a call.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from pydantic import AwareDatetime, Field, ValidationError

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.http_api import Scope
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.trust.seals import SEAL_BYTES, SealKeys

_TEXT = re.compile(r"tk_([0-9a-f]{16})_([0-9a-f]{64})", re.ASCII)
_ID_BYTES, _SECRET_BYTES = 8, 32
_HASH, _RECORD = "api-key-hash", "api-key"
_NOBODY = bytes(SEAL_BYTES)


class ApiKey(Record):
    """The record of a key; empty ``agents`` or ``tools`` are none, "*" is all.

    Attributes:
        hash: hash of its secret, in hex; ``seals`` is the id of the hashing key.
        created_by: name of the creator, for people.
        revoked_at: when it was revoked; None if it was not.
    """

    id: str
    name: str
    tenant: str
    agents: frozenset[str]
    tools: frozenset[str] = frozenset({"*"})
    scopes: frozenset[Scope] = frozenset(Scope)
    created_at: AwareDatetime
    expires_at: AwareDatetime
    created_by: str = ""
    revoked_at: AwareDatetime | None = None
    hash: str = Field(repr=False)
    seals: str = ""

    def may_be(self, agent: str) -> bool:
        """Return whether the key covers an agent."""
        return bool(self.agents & {agent, "*"})

    def may_use(self, tool: str) -> bool:
        """Return whether the key may propose and run calls of a tool."""
        return bool(self.tools & {tool, "*"})

    @property
    def may_use_all(self) -> bool:
        """Return whether the key may use every tool."""
        return "*" in self.tools


class NewKey(NamedTuple):
    """A new key: its record, and the text that is shown once."""

    kept: ApiKey
    text: str


class PresentedKey(NamedTuple):
    """A key as presented in a request."""

    id: str
    secret: str


def new_api_key(  # noqa: PLR0913 - what a key may do, by name
    seals: SealKeys,
    *,
    name: str,
    tenant: str,
    agents: Collection[str],
    now: datetime,
    expires_at: datetime,
    tools: Collection[str] = ("*",),
    scopes: Collection[Scope] = tuple(Scope),
    created_by: str = "",
) -> NewKey:
    """Make a key.

    Args:
        seals: the gateway's keys for API keys.
        name: for people who read the list.
        tenant: the tenant of its agents.
        agents: names of the agents, "*" for all.
        now: the time.
        expires_at: when it expires.
        tools: names of the tools whose calls it may propose and run, "*" for all.
        scopes: its permissions.
        created_by: name of the creator.
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
        created_by=created_by,
        # Keyed and fast: the secret has 256 random bits, so it cannot be guessed.
        hash=seals.make(_HASH, [id_], secret.encode()).hex(),
        seals=seals.id,
    )
    return NewKey(kept, f"tk_{id_}_{secret}")


def presented(text: str) -> PresentedKey | None:
    """Parse a key's text; None for any other text."""
    found = _TEXT.fullmatch(text)
    return None if found is None else PresentedKey(*found.groups())


def is_right(seals: SealKeys, key: PresentedKey, kept: ApiKey | None) -> bool:
    """Return whether a presented key has the secret of its record."""
    # Compared even without a record, so that timing does not reveal which ids exist.
    expected = _NOBODY if kept is None else bytes.fromhex(kept.hash)
    is_same = seals.is_valid(expected, _HASH, [key.id], key.secret.encode())
    return is_same and kept is not None and kept.id == key.id


def sealed(seals: SealKeys, key: ApiKey) -> bytes:
    """Return the stored form of a record: a seal, and JSON."""
    content = key.model_dump_json(exclude_defaults=True).encode()
    seal = seals.make(_RECORD, [key.tenant, key.id], content)
    return b"%b %b" % (base64.b64encode(seal), content)


def unsealed(seals: SealKeys, tenant: str, key_id: str, stored: bytes) -> ApiKey:
    """Return a record from its stored form.

    Raises:
        NotVerified: ``seal_wrong``: the gateway did not make it for this tenant and id;
            ``malformed``: an unknown version wrote it.
    """
    seal, _, content = stored.partition(b" ")
    try:
        raw = base64.b64decode(seal, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    seals.check(raw, _RECORD, [tenant, key_id], content)
    try:
        return ApiKey.model_validate_json(content)
    except ValidationError as error:
        raise NotVerified("malformed", "its fields are not those known here") from error
