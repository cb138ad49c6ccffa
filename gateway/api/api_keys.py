"""Check the API keys in requests."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

from aiohttp import web

from keyturn.gateway.store.http.api_keys import FoundKey
from keyturn.gateway.trust.api_keys import ApiKey, is_right, presented
from keyturn.gateway.trust.seals import SealKeys

Find = Callable[[str], Awaitable[FoundKey | None]]
Report = Callable[[str], Awaitable[None]]


class ApiKeys:
    """Checks presented keys.

    Args:
        seals: the gateway's keys for API keys.
        find: returns the record of a key by its id; None if there is none.
        report: receives the id of a revoked key whose older record was put back.
            Refused keys are reported by the caller.
    """

    def __init__(self, seals: SealKeys, find: Find, report: Report) -> None:
        self._seals = seals
        self._find = find
        self._report = report
        # Both contain only keys of the store, so they remain small.
        self._valid = set[bytes]()
        self._revoked = set[str]()

    def knows(self, text: str) -> bool:
        """Return whether a presented key was valid at its last check here."""
        return _digest(text) in self._valid

    async def check(self, text: str) -> ApiKey | None:
        """Return the record of a presented key; None if the key is not valid now.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        key = presented(text)
        if key is None:
            return None
        found = await self._find(key.id)
        kept = None if found is None else found.key
        # The same work for an unknown key, against timing attacks.
        is_known = is_right(self._seals, key, kept)
        if (
            found is None
            or not is_known
            or found.now >= found.key.expires_at
            or await self._is_revoked(found.key)
        ):
            # Its attempts count again: see `FailedKeys`.
            self._valid.discard(_digest(text))
            return None
        self._valid.add(_digest(text))
        return kept

    async def _is_revoked(self, key: ApiKey) -> bool:
        """Return whether a key was revoked, even if the record is an older copy."""
        if key.revoked_at is not None:
            self._revoked.add(key.id)
        elif key.id in self._revoked:
            # An older sealed copy was put back into the store.
            await self._report(key.id)
        return key.id in self._revoked


def bearer(request: web.BaseRequest) -> str:
    """Return the key or the token of a request; "" without one."""
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    return text if kind.lower() == "bearer" else ""


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
