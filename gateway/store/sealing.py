"""Seal what is stored and decides, and refuse what was not sealed for its place.

A sealed text is a mark, the seal, and the text (`keyturn.gateway.trust.seals`). The
place is the key in Redis, which names tenant and thread, and what tells several
texts under it apart. Approvals have seals of their own, see `codec`.

A seal does not tell an older text of the same place from the newest one. Where that
matters a text has a number that rises, and a process refuses a number below one that it
has seen.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum

from keyturn.gateway.approvals.security import SecurityEvent, SecurityKind
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.secret_check import ensure_known
from keyturn.gateway.store.security_events import SecurityEvents
from keyturn.gateway.store.text_encryption import decrypted, encrypted
from keyturn.gateway.trust.derived_keys import Purpose
from keyturn.gateway.trust.seals import SEAL_BYTES, SealKeys, seal_keys

MARK = b"\x1d"
"""What a sealed text begins with."""

_MOST_KNOWN = 10_000


class Sealed(StrEnum):
    """What kind of text is sealed; no text of one kind verifies as another."""

    VERDICTS = "verdicts"
    FACTS = "thread"
    DELEGATION = "delegation"
    FREEZES = "freezes"
    JOB = "job"
    PAGE = "page"
    CALL_END = "call"
    MESSAGE = "message"
    REJECTION = "rejection"
    EDIT = "edit"
    EVENT = "event"
    HTTP_ANSWER = "http_answer"
    VIEW = "view"


class Sealing:
    """Seals texts of one store, and reports what is not sealed.

    Args:
        conn: to the store, whose secrets the keys are derived from.
        security: takes the reports.
    """

    def __init__(self, conn: Connection, security: SecurityEvents) -> None:
        self._conn = conn
        self._security = security
        self._newest: OrderedDict[str, int] = OrderedDict()

    @property
    def conn(self) -> Connection:
        """Return the connection to the store."""
        return self._conn

    @property
    def keys(self) -> SealKeys:
        """Return the keys of facts."""
        return seal_keys(self._conn.secrets, Purpose.FACTS)

    def seal(self, kind: Sealed, place: Sequence[str], body: bytes) -> bytes:
        """Return the seal alone."""
        return self.keys.make(kind, place, body)

    def is_valid(
        self, kind: Sealed, place: Sequence[str], body: bytes, seal: bytes
    ) -> bool:
        """Return whether this is the seal of a text in a place."""
        return self.keys.is_valid(seal, kind, place, body)

    def sealed(self, kind: Sealed, place: Sequence[str], body: bytes) -> bytes:
        """Return a text as it is stored."""
        body = encrypted(self._conn, (kind, *place), body)
        return MARK + self.seal(kind, place, body) + body

    def opened(self, kind: Sealed, place: Sequence[str], stored: bytes) -> bytes | None:
        """Return the text that was sealed for this place; None for anything else."""
        start = len(MARK) + SEAL_BYTES
        seal, body = stored[len(MARK) : start], stored[start:]
        if not stored.startswith(MARK) or not self.is_valid(kind, place, body, seal):
            return None
        try:
            return decrypted(self._conn, (kind, *place), body)
        except ValueError:
            return None

    def is_older(self, place: str, number: int) -> bool:
        """Return whether a number of a place is below one that was seen before."""
        newest = self._newest.pop(place, 0)
        self._newest[place] = max(newest, number)
        if len(self._newest) > _MOST_KNOWN:
            self._newest.popitem(last=False)
        return number < newest

    def newest(self, place: str) -> int:
        """Return the greatest number of a place that was seen; 0 for none."""
        return self._newest.get(place, 0)

    async def ensure_known(self, keys: Keys) -> None:
        """Raise StoreUnavailable where others seal with an unknown secret."""
        await ensure_known(self._conn, self._security, keys)

    async def refuse(
        self,
        keys: Keys,
        kind: Sealed,
        stored: bytes,
        *,
        is_older: bool = False,
        **where: str,
    ) -> None:
        """Report a text that is not believed, because it is not sealed or is older.

        ``where`` is what is known of agent, thread, approval and name.

        Raises:
            StoreUnavailable: others may have sealed it, by a secret that came since.
        """
        if not is_older:
            await self.ensure_known(keys)
        found = SecurityEvent(
            kind=SecurityKind.REPLAYED if is_older else SecurityKind.SEAL_WRONG,
            tenant=keys.tenant,
            about=kind,
            agent=where.get("agent", ""),
            thread=where.get("thread", ""),
            approval=where.get("approval", ""),
            name=where.get("name", ""),
            key_id=self.keys.id,
            evidence=hashlib.sha256(stored).hexdigest()[:16],
        )
        await self._security.report(keys, found)
