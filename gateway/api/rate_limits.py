"""Rate limits of API keys: token buckets, and limits for waiting requests."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.protocol.http_problems import TOO_MANY

MOST_WAITS = 500
"""Default limit of waiting requests of all keys."""

_MOST_KNOWN = 10_000
_LEAST_BURST = 20


MEGABYTES_PER_DAY = 1024
"""Default limit of the storage that one key may use in a day."""

_MEGABYTE = 1_000_000
_DAY_S = 86_400

FAILED_PER_MINUTE = 60
MOST_FAILED = 100
"""Wrong keys that one address may try: per minute in the long run, and at once."""


class _Buckets:
    """Token buckets by name; the ones idle longest are dropped.

    Args:
        per_s: tokens returned per second.
        burst: most tokens of a bucket.
        clock_s: a clock that never goes back.
    """

    def __init__(
        self, per_s: float, burst: float, clock_s: Callable[[], float]
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock_s = clock_s
        # The tokens of each name, and when they were counted.
        self._all: dict[str, tuple[float, float]] = {}

    def spend(self, name: str, tokens: int) -> None:
        """Take tokens, even more than there are; a debt has to be refilled first."""
        now_s = self._clock_s()
        left = self._tokens(name, now_s) - tokens
        # Last in the order of use, so that idle buckets are dropped first.
        self._all.pop(name, None)
        self._all[name] = left, now_s
        if len(self._all) > _MOST_KNOWN:
            del self._all[next(iter(self._all))]

    def require(self, name: str, why: str, least: float = 1.0) -> None:
        """Refuse a request for a bucket with fewer tokens.

        Raises:
            Refusal: with the whole seconds until there are so many.
        """
        missing = least - self._tokens(name, self._clock_s())
        if missing > 0:
            wait_s = math.ceil(missing / self._per_s)
            raise Refusal(
                TOO_MANY,
                f"{why} Ask again in {wait_s} s.",
                {"Retry-After": str(wait_s)},
            )

    def _tokens(self, name: str, now_s: float) -> float:
        tokens, at_s = self._all.get(name, (self._burst, now_s))
        return min(self._burst, tokens + (now_s - at_s) * self._per_s)


class FailedKeys:
    """Limits how many invalid keys each address may try.

    A key that this process has found valid is not affected by other keys from the same
    address, which may be a proxy's.

    Args:
        clock_s: a clock that never goes back.
    """

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._buckets = _Buckets(FAILED_PER_MINUTE / 60, MOST_FAILED, clock_s)

    def check(self, address: str) -> None:
        """Refuse to look up a key for an address with too many wrong ones.

        Raises:
            Refusal: with the time until the next attempt.
        """
        why = "Too many keys that are not valid came from this address."
        self._buckets.require(address, why)

    def count(self, address: str) -> None:
        """Count an invalid key, without a debt for many that are checked at once."""
        with suppress(Refusal):
            self.check(address)
            self._buckets.spend(address, 1)


class RateLimits:
    """Limits the requests and storage of each key in this process.

    Args:
        per_minute: requests of a key in the long run; a third of it at once.
        megabytes_per_day: storage of a key in a day; half of it at once.
        most_waits: requests of all keys that wait at the same time. Each key gets at
            most as many as are left, so one key gets half of them, and many keys of one
            owner leave room for others.
        clock_s: a clock that never goes back.
    """

    def __init__(
        self,
        per_minute: int,
        *,
        megabytes_per_day: int = MEGABYTES_PER_DAY,
        most_waits: int = MOST_WAITS,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_minute = per_minute
        burst = max(_LEAST_BURST, per_minute / 3)
        self._buckets = _Buckets(per_minute / 60, burst, clock_s)
        self._megabytes = megabytes_per_day
        self._half_day = megabytes_per_day * _MEGABYTE / 2
        self._stored = _Buckets(self._half_day / _DAY_S, self._half_day, clock_s)
        self._most_waits = most_waits
        self._waits = Counter[str]()

    def take(self, key_id: str) -> None:
        """Count one request.

        Raises:
            Refusal: when the key sends too many requests, with the pause until the
                next.
        """
        self._buckets.require(
            key_id,
            f"This key sends more than {self._per_minute:.0f} requests a minute; wait "
            "for events instead of polling.",
        )
        self._buckets.spend(key_id, 1)

    def count_more(self, key_id: str, requests: int) -> None:
        """Count a large request, already taken as one, as more requests."""
        self._buckets.spend(key_id, requests)

    def store(self, key_id: str, size: int, *, ends_work: bool = False) -> None:
        """Count bytes that the gateway stores for a key.

        Args:
            key_id: id of the key.
            size: number of bytes.
            ends_work: the request reports the result of an allowed call. It may exceed
                the limit by half a day's bytes, because a refused report leaves the
                call in doubt.

        Raises:
            Refusal: when the key stored too much today, with the time until it may
                store more.
        """
        self._stored.require(
            key_id,
            f"This key stored {self._megabytes} MB in a day, as much as it may "
            "('api.megabytes_per_day'); nothing was stored.",
            1.0 - self._half_day if ends_work else 1.0,
        )
        self._stored.spend(key_id, size)

    @contextmanager
    def waiting(self, key_id: str) -> Generator[None]:
        """Count a waiting request while the block runs.

        Raises:
            Refusal: when too many requests of this key, or of all keys, wait already.
        """
        if self._waits[key_id] >= self._most_waits - self._waits.total():
            raise Refusal(
                TOO_MANY,
                f"{self._waits[key_id]} requests of this key wait already, and "
                f"{self._waits.total()} in all; follow GET /v1/events instead, which "
                "covers all threads of an agent, or ask another process.",
                {"Retry-After": "5"},
            )
        self._waits[key_id] += 1
        try:
            yield
        finally:
            self._waits[key_id] -= 1
            self._waits = +self._waits
