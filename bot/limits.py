"""Track Slack's rate limits: how long the next call has to wait.

Slack counts per method, workspace and app, and posts per channel as well. Each has a
token bucket: a call takes a token, and tokens are refilled at a steady rate. After a
429 only calls of that method (and channel) wait, for the time in Retry-After. Source:
https://docs.slack.dev/apis/web-api/rate-limits
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

logger = logging.getLogger(__name__)

POST: Final = "chat.postMessage"
UPDATE: Final = "chat.update"
OPEN_DM: Final = "conversations.open"
GROUP_USERS: Final = "usergroups.users.list"
USER: Final = "users.info"
PUBLISH: Final = "views.publish"
HISTORY: Final = "conversations.history"


class Call(NamedTuple):
    """A call of Slack's Web API, as its rate limit counts it.

    Attributes:
        method: of the Web API.
        channel: of a post; "" for other methods.
        keep: tokens that it leaves for calls that cannot wait.
    """

    method: str
    channel: str = ""
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``burst`` calls at once, and ``per_minute`` in the long run.

    ``after_refusal`` calls may go out at once when a Retry-After is over.
    """

    per_minute: float
    burst: int
    after_refusal: int = 1

    @property
    def refill_s(self) -> float:
        """Return the seconds until one more call may go out."""
        return 60.0 / self.per_minute


# In the worst window a burst is added to the refill: 6 + 44 updates in a minute, 3 + 7
# posts in ten seconds, 6 + 14 user groups in a minute. Slack promises to accept that.
RATES: Final = {
    POST: Rate(42, 3),
    UPDATE: Rate(44, 6),
    OPEN_DM: Rate(44, 6),
    HISTORY: Rate(44, 6),
    # One click needs several people and groups. After a Retry-After all of them must be
    # available, or the next click would only get one step further.
    GROUP_USERS: Rate(14, 6, after_refusal=6),
    USER: Rate(80, 20, after_refusal=20),
    PUBLISH: Rate(70, 25, after_refusal=5),
}
OTHERS: Final = Rate(80, 20)
_PER_CHANNEL: Final = frozenset({POST})
_NOTHING_S: Final = 1e-6


class Limits:
    """The buckets of one workspace.

    A call that can wait passes the number of tokens to ``keep``, as a reserve for calls
    that cannot wait.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Each bucket by the time at which it is full again; the missing tokens follow
        # from that (GCRA). Only in memory: after a restart the buckets are full. At
        # worst Slack answers 429, and `refused` waits for that.
        self._full_at: dict[str, float] = {}
        self._closed_until: dict[str, float] = {}
        self._ids: dict[str, str] = {}

    def alias_channel(self, name: str, channel: str) -> None:
        """Count calls to the name of a channel as calls to its id."""
        self._ids[name] = channel

    def channel_id(self, name: str) -> str:
        """Return the id of a channel if it is known, else ``name``."""
        return self._ids.get(name, name)

    def wait_s(self, method: str, channel: str = "", keep: int = 0) -> float:
        """Return 0 if a call may go out now, else the seconds until it may."""
        key, rate = self._key(method, channel), RATES.get(method, OTHERS)
        # A bucket never has more than its burst: a call with a reserve would wait for
        # ever in a small bucket.
        spare = max(0, rate.burst - 1 - keep)
        free_at = self._full_at.get(key, -math.inf) - spare * rate.refill_s
        # A Retry-After counts even if tokens are left: Slack also counts calls of other
        # processes with the same token.
        wait_s = max(free_at, self._closed_until.get(key, free_at)) - self._clock()
        # Rounding must not leave a caller waiting for the last billionth of a token.
        return 0.0 if wait_s <= _NOTHING_S else wait_s

    def take(self, method: str, channel: str = "", keep: int = 0) -> float:
        """Count a call if it may go out now; return what `wait_s` returns."""
        wait_s = self.wait_s(method, channel, keep)
        if wait_s == 0:
            key, rate = self._key(method, channel), RATES.get(method, OTHERS)
            full_at = max(self._full_at.get(key, -math.inf), self._clock())
            self._full_at[key] = full_at + rate.refill_s
        return wait_s

    def refused(self, method: str, channel: str, retry_after_s: float) -> None:
        """Block calls after a 429; the bucket then starts again with few tokens."""
        logger.warning("slack.rate_limited method=%s for_s=%.0f", method, retry_after_s)
        now = self._clock()
        key = self._key(method, channel)
        until = now + max(0.0, retry_after_s)
        # Two calls may be refused at once; the later end counts, in any order of
        # answers.
        self._closed_until[key] = max(until, self._closed_until.get(key, until))
        rate = RATES.get(method, OTHERS)
        missing = rate.burst - rate.after_refusal
        self._full_at[key] = until + missing * rate.refill_s

    def _key(self, method: str, channel: str) -> str:
        if method not in _PER_CHANNEL:
            return method
        return f"{method} {self._ids.get(channel, channel)}"


RESERVED = 10
"""Calls of the rate limit reserved for people who open their tab now."""

_LONGEST_WAIT_S = 30.0


@dataclass(slots=True)
class HomeUpdates:
    """Serialize and coalesce the updates of each Home tab that this process publishes.

    Attributes:
        clock: seconds, monotonic.
        changed: set after an event that may change an open tab.
    """

    clock: Callable[[], float]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    limits: Limits = field(init=False)
    _asked: set[str] = field(default_factory=set[str])
    # A lock lives as long as a task holds it or waits for it.
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock]
    )

    def __post_init__(self) -> None:
        """Begin with full buckets."""
        self.limits = Limits(self.clock)

    @asynccontextmanager
    async def next_update(self, user: str) -> AsyncGenerator[bool]:
        """Wait for a person's next update; yield False if a later one covers it.

        Of several waiting updates of one person, the first begins after all were
        requested, so it shows all their changes.
        """
        if user in self._asked:
            yield False
            return
        self._asked.add(user)
        lock = self._locks.setdefault(user, asyncio.Lock())
        try:
            await lock.acquire()
        finally:
            self._asked.discard(user)
        try:
            yield True
        finally:
            lock.release()

    async def wait_for_limit(self) -> None:
        """Wait until one more tab may be published, some seconds at most."""
        while True:
            wait_s = self.limits.take(PUBLISH)
            if not wait_s:
                return
            await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))
