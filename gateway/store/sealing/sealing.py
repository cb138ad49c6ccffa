"""Seal security-relevant texts, and reject texts with an invalid seal for their place.

A sealed text is a mark, the seal, and the text (`keyturn.gateway.trust.seals`).
Its place is the Redis key, which contains tenant and thread, and names that distinguish
several texts under one key. Approvals have other seals, see
`keyturn.gateway.store.records.codec`.

A seal does not reveal that a text is older than another one of the same place. Where
that matters, a text has a rising number, and a process rejects a number below the
highest one it has seen.

A process refuses to start on a store that is sealed with another secret.
"""

from __future__ import annotations

import base64
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum

from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.errors import SettingsError, StoreUnavailable
from keyturn.gateway.store.connection.connection import Connection, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.encryption import (
    decrypted,
    decrypted_text,
    encrypted,
    encrypted_text,
)
from keyturn.gateway.store.sealing.security_events import SecurityEvents
from keyturn.gateway.trust.seals import (
    SEAL_BYTES,
    Purpose,
    SealKeys,
    key_id_of,
    seal_keys,
)

MARK = b"\x1d"
"""First byte of a sealed text."""

_SEAL = 24
"""Length of a seal in base64."""

_MOST_KNOWN = 10_000

SEALED_OTHERWISE = (
    "the store is marked as sealed with a secret that this process does not accept. If "
    "KEYTURN_SECRET was replaced, restart it with the new one; if not, see who else "
    "writes to the store."
)


class Sealed(StrEnum):
    """Kind of a sealed text; a seal is valid for one kind only."""

    VERDICTS = "verdicts"
    FACTS = "thread"
    DELEGATION = "delegation"
    FREEZES = "freezes"
    JOB = "job"
    PAGE = "page"
    CALL_END = "call"
    MESSAGE = "message"
    REJECTION = "rejection"
    PRECEDENT = "precedent"
    EDIT = "edit"
    EVENT = "event"
    API_KEY = "api_key"
    VIEW = "view"
    DEFINITIONS = "definitions"
    LEFT_CALL = "left_call"
    JOINED_CALL = "joined_call"
    CARD_URL = "card_url"
    INSTALLATION = "installation"


class Seals:
    """Seals texts of one store.

    Args:
        conn: connection to the store, with the secrets for the keys.

    Attributes:
        conn: connection to the store.
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn

    @property
    def keys(self) -> SealKeys:
        """Return the keys of facts."""
        return seal_keys(self.conn.secrets, Purpose.FACTS)

    def sealed(self, kind: Sealed, place: Sequence[str], body: bytes) -> bytes:
        """Return a text in stored form."""
        body = encrypted(self.conn, (kind, *place), body)
        return MARK + self.keys.make(kind, place, body) + body

    def opened(self, kind: Sealed, place: Sequence[str], stored: bytes) -> bytes | None:
        """Return the text if its seal is valid for this place, else None."""
        start = len(MARK) + SEAL_BYTES
        seal, body = stored[len(MARK) : start], stored[start:]
        is_valid = self.keys.is_valid(seal, kind, place, body)
        if not (is_valid and stored.startswith(MARK)):
            return None
        try:
            return decrypted(self.conn, (kind, *place), body)
        except ValueError:
            return None

    def sealed_text(self, kind: Sealed, place: Sequence[str], body: str) -> str:
        """Return JSON in stored form, for scripts, which take only strings."""
        text = encrypted_text(self.conn, (kind, *place), body)
        seal = self.keys.make(kind, place, text.encode())
        return base64.b64encode(seal).decode() + text

    def opened_text(
        self, kind: Sealed, place: Sequence[str], stored: bytes
    ) -> bytes | None:
        """Return the JSON if its seal is valid for this place, else None."""
        # Not in base64, or encrypted for another place.
        with suppress(ValueError):
            seal = base64.b64decode(stored[:_SEAL], validate=True)
            if self.keys.is_valid(seal, kind, place, stored[_SEAL:]):
                return decrypted_text(self.conn, (kind, *place), stored[_SEAL:])
        return None


class Sealing(Seals):
    """Seals texts of one store, and reports invalid seals.

    Args:
        conn: connection to the store, with the secrets for the keys.
        security: receives the reports.

    Attributes:
        security: receives the reports.
    """

    def __init__(self, conn: Connection, security: SecurityEvents) -> None:
        super().__init__(conn)
        self.security = security
        self._newest: OrderedDict[str, int] = OrderedDict()

    def is_older(self, place: str, number: int) -> bool:
        """Return whether a number is below the highest one seen for a place."""
        newest = self._newest.pop(place, 0)
        self._newest[place] = max(newest, number)
        if len(self._newest) > _MOST_KNOWN:
            self._newest.popitem(last=False)
        return number < newest

    def newest(self, place: str) -> int:
        """Return the highest number seen for a place; 0 if there is none."""
        return self._newest.get(place, 0)

    async def ensure_known(self, keys: Keys, *, approval: str = "") -> None:
        """Raise unless this process accepts the tenant's current secret.

        Call it before a record is treated as forged: its seal may be valid under a
        newer secret. An attacker can fake such a change of the secret, so it is
        reported.

        Args:
            keys: keys of the tenant.
            approval: the approval that cannot be verified.

        Raises:
            StoreUnavailable: the current secret is unknown here, so this process must
                not decide, acknowledge or quarantine.
        """
        if await knows_secret(self.conn, keys):
            return
        kind = SecurityKind.SECRET_UNKNOWN
        found = SecurityEvent(kind=kind, tenant="", about="secret", approval=approval)
        await self.security.report(keys, found)
        raise StoreUnavailable(
            f"The data of the store cannot be verified, so nothing was decided or run: "
            f"{SEALED_OTHERWISE}"
        )

    async def refuse(
        self,
        keys: Keys,
        kind: Sealed,
        stored: bytes,
        *,
        is_older: bool = False,
        **where: str,
    ) -> None:
        """Report a rejected text: its seal is invalid, or it is an older one.

        ``where`` has the agent, thread, approval and name, as far as known.

        Raises:
            StoreUnavailable: the seal may be valid under a newer secret.
        """
        if not is_older:
            await self.ensure_known(keys)
        found = SecurityEvent(
            kind=SecurityKind.REPLAYED if is_older else SecurityKind.SEAL_WRONG,
            tenant=keys.tenant,
            about=kind,
            key_id=self.keys.id,
            evidence=hashlib.sha256(stored).hexdigest()[:16],
        )
        await self.security.report(keys, found.with_(**where))


class Repository:
    """One kind of data of all tenants; see `keyturn.gateway.store.store.Store`."""

    def __init__(self, sealing: Sealing) -> None:
        self._conn, self._sealing = sealing.conn, sealing


async def ensure_secret(conn: Connection, keys: Keys) -> None:
    """Store the id of the tenant's sealing key, or compare it with the stored one.

    A process with another secret would treat every record as forged, and quarantine it.
    The stored id of the derived key reveals nothing about the secret. Changing it only
    prevents processes from starting.

    Raises:
        SettingsError: the secret differs; the message has the next step.
        StoreUnavailable: when the store does not answer.
    """
    key, mine = keys.sealed_by, _mine(conn)
    kept = await first_of(conn, key, mine[0])
    if kept not in mine:
        raise SettingsError(
            f"This store is sealed with another secret (its key is {kept}, "
            f"and this process has {', '.join(mine)}), so its data cannot be "
            "verified. Give all processes of a store the same KEYTURN_SECRET, or the "
            "same 'data_dir'. If that secret is lost, see 'A lost secret' in "
            "docs/upgrade.md."
        )
    if kept != mine[0]:
        # The secret is being replaced: other processes already accept the new one.
        await conn.keep(["SET", key, mine[0]])


async def first_of(conn: Connection, key: str, mine: str) -> str:
    """Return the text of a key; the first caller's text is stored.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    if kept := text(await conn.command("GET", key)):
        return kept
    # If two processes start at once, one write wins, and both compare.
    await conn.keep(["SET", key, mine, "NX"])
    return text(await conn.command("GET", key))


async def knows_secret(conn: Connection, keys: Keys) -> bool:
    """Return whether this process accepts the secret that now seals a tenant's data.

    A process that was paused, or forgotten, during a change of the secret does not.
    Seals that it cannot verify are then no evidence of forgery.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    kept = text(await conn.command("GET", keys.sealed_by))
    return not kept or kept in _mine(conn)


def _mine(conn: Connection) -> list[str]:
    return [key_id_of(one, Purpose.RECORDS) for one in conn.secrets]
