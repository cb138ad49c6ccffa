"""Keep the answers to writes over HTTP for a day, sealed, for attempts that repeat."""

from __future__ import annotations

import hashlib
from datetime import timedelta

from pydantic import ValidationError

from twokey.gateway.approvals.security import SecurityEvent, SecurityKind
from twokey.gateway.protocol.records import Record
from twokey.gateway.store.packing import packed, unpacked
from twokey.gateway.store.store import Store
from twokey.gateway.store.text_encryption import decrypted, encrypted
from twokey.gateway.trust.seals import SEAL_BYTES, SealKeys

KEPT = timedelta(hours=24)
"""How long the answer to a write is kept."""

_KEPT_MS = int(KEPT.total_seconds() * 1000)
_LABEL = "http-answer"


class KeptAnswer(Record):
    """The answer to a write: of which request, and what it was.

    Attributes:
        request: a hash of what was asked.
        body: of the answer; "" where it is asked anew each time.
    """

    request: str
    body: str


class KeptAnswers:
    """The answers to writes of one tenant.

    Args:
        store: where they are kept.
        seals: the gateway's keys: an answer may let a call run, so nobody else makes
            one.
        tenant: whose they are.
    """

    def __init__(self, store: Store, seals: SealKeys, *, tenant: str) -> None:
        self._store = store
        self._keys = store.keys_of_tenant(tenant)
        self._seals = seals
        self._tenant = tenant

    async def find(self, api_key: str, idempotency_key: str) -> KeptAnswer | None:
        """Return what was answered to a write, None when nothing is kept of it.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        name = self._name(api_key, idempotency_key)
        stored = await self._store.conn.command("GET", name)
        if not isinstance(stored, bytes):
            return None
        seal, content = stored[:SEAL_BYTES], stored[SEAL_BYTES:]
        if not self._seals.is_valid(seal, _LABEL, [self._tenant, name], content):
            await self._store.sealing.ensure_known(self._keys)
            found = SecurityEvent(
                kind=SecurityKind.SEAL_WRONG,
                tenant=self._tenant,
                about="http_answer",
                name=api_key,
                key_id=self._seals.id,
                evidence=hashlib.sha256(stored).hexdigest(),
            )
            await self._store.security.report(self._keys, found)
            return None
        try:
            content = decrypted(self._store.conn, (_LABEL, name), content)
            return KeptAnswer.model_validate_json(unpacked(content))
        except (ValidationError, ValueError):
            # Of a version that is not known; it is asked anew.
            return None

    async def keep(
        self, api_key: str, idempotency_key: str, answer: KeptAnswer
    ) -> None:
        """Keep an answer; the first one stays.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """
        name = self._name(api_key, idempotency_key)
        content = packed(answer.model_dump_json())
        content = encrypted(self._store.conn, (_LABEL, name), content)
        seal = self._seals.make(_LABEL, [self._tenant, name], content)
        await self._store.conn.command(
            "SET", name, seal + content, "NX", "PX", _KEPT_MS
        )

    def _name(self, api_key: str, idempotency_key: str) -> str:
        return self._keys.http_answer(self._tenant, api_key, idempotency_key)
