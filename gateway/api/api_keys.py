"""Check the API keys in requests."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from datetime import datetime

from aiohttp import web

from keyturn.gateway.trust.api_keys import ApiKey, is_right, presented
from keyturn.gateway.trust.seals import SealKeys

Find = Callable[[str], Awaitable[tuple[ApiKey, datetime] | None]]


class ApiKeys:
    """Checks presented keys.

    Args:
        seals: the gateway's keys for API keys.
        find: returns the record of a key that is not revoked, by its id, and the
            current time; None if there is none. Refused keys are reported by the
            caller.
    """

    def __init__(self, seals: SealKeys, find: Find) -> None:
        self._seals = seals
        self._find = find
        # Only keys of the store, so it remains small.
        self._valid = set[bytes]()

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
        # The same work for an unknown key, against timing attacks.
        is_known = is_right(self._seals, key, found and found[0])
        if found is None or not is_known or found[1] >= found[0].expires_at:
            # Its attempts count again: see `FailedKeys`.
            self._valid.discard(_digest(text))
            return None
        self._valid.add(_digest(text))
        return found[0]


def bearer(request: web.BaseRequest) -> str:
    """Return the key or the token of a request; "" without one."""
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    return text if kind.lower() == "bearer" else ""


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
