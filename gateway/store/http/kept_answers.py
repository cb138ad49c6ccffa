"""Store sealed answers to HTTP writes for a day, for repeated requests."""

from __future__ import annotations

from datetime import timedelta

from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import Reply
from keyturn.gateway.store.sealing.encryption import packed, unpacked
from keyturn.gateway.store.sealing.sealing import Sealed
from keyturn.gateway.store.store import Store

KEPT = timedelta(hours=24)
"""How long the answer to a write is stored."""

_KEPT_MS = int(KEPT.total_seconds() * 1000)


class KeptAnswer(Record):
    """The answer to a write.

    Attributes:
        request: hash of the request.
        body: body of the answer; "" if a repeated request computes it again.
    """

    request: str
    body: str


class KeptAnswers:
    """Answers to a tenant's writes.

    Args:
        store: the store.
        tenant: owner of the answers.
    """

    def __init__(self, store: Store, *, tenant: str) -> None:
        self._store = store
        self._keys = store.keys_of_tenant(tenant)

    async def find(self, api_key: str, idempotency_key: str) -> KeptAnswer | None:
        """Return the stored answer to a write; None if there is none.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        name = self._name(api_key, idempotency_key)
        stored = await self._store.conn.command("GET", name)
        return await self._opened(name, api_key, stored)

    async def keep(
        self, api_key: str, idempotency_key: str, answer: KeptAnswer
    ) -> KeptAnswer | None:
        """Store an answer, unless there is an earlier one; return the earlier one.

        Raises:
            StoreUnavailable: when the result is unknown.
        """
        name = self._name(api_key, idempotency_key)
        stored = self._store.sealing.sealed(
            Sealed.HTTP_ANSWER,
            (self._keys.tenant, name),
            packed(answer.model_dump_json()),
        )
        earlier = await self._store.conn.command(
            "SET", name, stored, "NX", "GET", "PX", _KEPT_MS
        )
        return await self._opened(name, api_key, earlier)

    async def _opened(
        self, name: str, api_key: str, stored: Reply
    ) -> KeptAnswer | None:
        """Return a stored answer; report one with an invalid seal, and return None."""
        if not isinstance(stored, bytes):
            return None
        sealing = self._store.sealing
        content = sealing.opened(Sealed.HTTP_ANSWER, (self._keys.tenant, name), stored)
        if content is None:
            await sealing.refuse(self._keys, Sealed.HTTP_ANSWER, stored, name=api_key)
            return None
        return KeptAnswer.model_validate_json(unpacked(content))

    def _name(self, api_key: str, idempotency_key: str) -> str:
        return self._keys.http_answer(api_key, idempotency_key)
