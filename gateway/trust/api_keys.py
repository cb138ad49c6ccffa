"""API keys of agents: their permissions, and their sealed records.

A key is ``tk_<id>_<secret>``. Its record has the id, the permissions, the expiry and a
keyed hash of the secret, so that a copy of the list is useless. The record is sealed
for its tenant and id: write access to the store is not enough to make a key or widen
one. No key can decide on a call.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from pydantic import AwareDatetime, Field

from keyturn.gateway.protocol.http_api import Scope
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.trust.seals import SEAL_BYTES, SealKeys

_TEXT = re.compile(r"tk_([0-9a-f]{16})_([0-9a-f]{64})", re.ASCII)
_ID_BYTES, _SECRET_BYTES = 8, 32
_HASH = "api-key-hash"
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


def new_api_key(seals: SealKeys, **fields: object) -> NewKey:
    """Make a key with these fields of `ApiKey`.

    Args:
        seals: the gateway's sealing keys.
        fields: name, tenant, permissions and times.
    """
    id_ = secrets.token_hex(_ID_BYTES)
    secret = secrets.token_hex(_SECRET_BYTES)
    # Keyed and fast: the secret has 256 random bits, so it cannot be guessed.
    hashed = seals.make(_HASH, [id_], secret.encode()).hex()
    kept = ApiKey.model_validate(
        {**fields, "id": id_, "hash": hashed, "seals": seals.id}
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
