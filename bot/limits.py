"""Say how long a call to Slack has to wait, so that Slack never has to refuse it.

Slack counts per method, workspace and app; posting also per channel. A bucket holds
tokens: a call takes one, and they come back at a steady rate. After a 429 only the
method (and channel) it was about stands still, for as long as Slack said.
Source: https://docs.slack.dev/apis/web-api/rate-limits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

POST: Final = "chat.postMessage"
UPDATE: Final = "chat.update"
GROUP_USERS: Final = "usergroups.users.list"
USER: Final = "users.info"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``burst`` calls at once, and ``per_minute`` in the long run.

    ``after_refusal`` calls may go out at once when a Retry-After is over.
    """

    per_minute: float
    burst: int
    after_refusal: int = 1


# In the worst window a burst comes on top of what flows back: 6 + 44 updates in a
# minute, 3 + 7 posts in ten seconds, 6 + 14 user groups in a minute. That is what
# Slack promises to take.
RATES: Final = {
    POST: Rate(42, 3),
    UPDATE: Rate(44, 6),
    # One click asks about several people and groups; after a Retry-After it has to
    # learn all of them, or the next click would only get one step further.
    GROUP_USERS: Rate(14, 6, after_refusal=6),
    USER: Rate(80, 20, after_refusal=20),
}
OTHERS: Final = Rate(80, 20)
_PER_CHANNEL: Final = frozenset({POST})


class Limits:
    """The buckets of one workspace.

    Args:
        clock: seconds, never going backwards.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._closed_until: dict[str, float] = {}

    def wait_s(self, method: str, channel: str = "") -> float:
        """Return 0 when a call may go out now, else the seconds until it may."""
        now = self._clock()
        key = _key(method, channel)
        closed_s = self._closed_until.get(key, now) - now
        return max(0.0, closed_s, self._bucket(key, method).wait_s(now))

    def take(self, method: str, channel: str = "") -> float:
        """Count a call if it may go out now; return what `wait_s` returns."""
        wait_s = self.wait_s(method, channel)
        if wait_s == 0:
            self._bucket(_key(method, channel), method).take(self._clock())
        return wait_s

    def refused(self, method: str, channel: str, retry_after_s: float) -> None:
        """Stand still after a 429; the bucket then starts again with few tokens."""
        now = self._clock()
        key = _key(method, channel)
        until = now + max(0.0, retry_after_s)
        self._closed_until[key] = max(until, self._closed_until.get(key, until))
        self._bucket(key, method).empty(until)

    def _bucket(self, key: str, method: str) -> _Bucket:
        found = self._buckets.get(key)
        if found is None:
            rate = RATES.get(method, OTHERS)
            found = self._buckets[key] = _Bucket(rate, self._clock())
        return found


class _Bucket:
    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._at = now

    def wait_s(self, now: float) -> float:
        missing = 1.0 - self._filled(now)
        # Rounding must not leave a caller waiting for the last billionth of a token.
        return 0.0 if missing <= 1e-9 else missing * 60.0 / self._rate.per_minute  # noqa: PLR2004 - the billionth

    def take(self, now: float) -> None:
        self._tokens, self._at = self._filled(now) - 1.0, now

    def empty(self, until: float) -> None:
        self._tokens, self._at = float(self._rate.after_refusal), until

    def _filled(self, now: float) -> float:
        passed = max(0.0, now - self._at)
        back = passed * self._rate.per_minute / 60.0
        return min(float(self._rate.burst), self._tokens + back)


def _key(method: str, channel: str) -> str:
    return f"{method} {channel}" if method in _PER_CHANNEL else method
