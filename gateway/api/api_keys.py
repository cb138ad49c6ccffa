"""Check the API keys in requests."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from keyturn.gateway.approvals.security import SecurityKind
from keyturn.gateway.store.api_keys import FoundKey
from keyturn.gateway.trust.api_keys import ApiKey, PresentedKey, is_right, presented
from keyturn.gateway.trust.seals import SealKeys

FRESH_S = 1.0
"""How long the record of a key is cached; a revoked key ends within that time."""

MOST_KNOWN = 10_000
"""Most keys in the cache."""

Find = Callable[[str], Awaitable[FoundKey | None]]
Report = Callable[[SecurityKind, str], Awaitable[None]]


async def no_report(_: SecurityKind, __: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class _Known:
    found: FoundKey
    read_s: float


class ApiKeys:
    """Checks presented keys.

    Args:
        seals: the gateway's keys for API keys.
        find: returns the record of a key by its id; None if there is none.
        report: receives security events about a key, by its id. Refused keys are
            reported by the caller.
        clock_s: a clock of this process that never goes back.
    """

    def __init__(
        self,
        seals: SealKeys,
        find: Find,
        *,
        report: Report = no_report,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seals = seals
        self._find = find
        self._report = report
        self._clock_s = clock_s
        self._known: dict[str, _Known] = {}
        self._revoked: set[str] = set()

    def knows(self, text: str) -> bool:
        """Return whether a presented key was valid when its record was last read."""
        key = presented(text)
        known = None if key is None else self._known.get(key.id)
        if key is None or known is None:
            return False
        return is_right(self._seals, key, known.found.key)

    async def check(self, text: str) -> ApiKey | None:
        """Return the record of a presented key; None if the key is not valid now.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        key = presented(text)
        if key is None:
            return None
        known = await self._kept(key)
        kept = None if known is None else known.found.key
        if known is None or kept is None or not is_right(self._seals, key, kept):
            # The same work as for a known key, against timing attacks.
            if kept is None:
                is_right(self._seals, key, None)
            return None
        # By the clock of the store: this machine's may be wrong.
        passed_s = self._clock_s() - known.read_s
        left_s = (kept.expires_at - known.found.now).total_seconds()
        return kept if passed_s < left_s else None

    async def _kept(self, key: PresentedKey) -> _Known | None:
        known = self._known.get(key.id)
        now_s = self._clock_s()
        if known is None or now_s - known.read_s >= FRESH_S:
            self._known.pop(key.id, None)
            found = await self._find(key.id)
            if found is None or await self._is_revoked(found.key):
                return None
            # The time before reading, so that the cached record is never older.
            known = _Known(found, now_s)
            if len(self._known) >= MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key.id] = known
        return known

    async def _is_revoked(self, key: ApiKey) -> bool:
        """Return whether a key was revoked, even if the record is an older copy."""
        if key.revoked_at is not None:
            if len(self._revoked) < MOST_KNOWN:
                self._revoked.add(key.id)
            return True
        if key.id not in self._revoked:
            return False
        # An older sealed copy was put back into the store.
        await self._report(SecurityKind.REPLAYED, key.id)
        return True
