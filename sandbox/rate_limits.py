"""Enforce Slack's rate limits on Web API calls.

Slack guarantees a tier's rate per minute, method, workspace and app. The sandbox allows
exactly that rate in any 60 seconds, so an app that is within the limits here is within
Slack's. Posts are counted per channel: one a second on average, in bursts of up to ten.
Source: https://docs.slack.dev/apis/web-api/rate-limits
"""

import math
from collections import defaultdict, deque
from typing import NamedTuple

from keyturn.sandbox.clock import Clock


class Limit(NamedTuple):
    """At most `calls` within any `seconds`."""

    calls: int
    seconds: float


TIER_1 = Limit(1, 60)
TIER_2 = Limit(20, 60)
TIER_3 = Limit(50, 60)
TIER_4 = Limit(100, 60)
POSTING = Limit(10, 10)
UNLIMITED = ("api.test", "auth.test", "blocks.validate", "oauth.v2.access")

LIMITS: dict[str, Limit] = {
    "apps.connections.open": TIER_3,
    "auth.revoke": TIER_3,
    "bots.info": TIER_3,
    "chat.delete": TIER_3,
    "chat.getPermalink": Limit(600, 60),
    "chat.postEphemeral": TIER_4,
    "chat.postMessage": POSTING,
    "chat.update": TIER_3,
    "conversations.history": TIER_3,
    "conversations.info": TIER_3,
    "conversations.list": TIER_2,
    "conversations.members": TIER_4,
    "conversations.open": TIER_3,
    "conversations.replies": TIER_3,
    "usergroups.list": TIER_2,
    "usergroups.users.list": TIER_2,
    "users.info": TIER_4,
    "users.list": TIER_2,
    "views.open": TIER_4,
    "views.publish": TIER_4,
    "views.push": TIER_4,
    "views.update": TIER_4,
}
PER_CHANNEL = frozenset({"chat.postMessage"})


class RateLimits:
    """Count calls per method, and compute waiting times.

    Attributes:
        enabled: set to False to let every call pass.
        scale: multiplies every limit; 0.1 allows a tenth of the calls.
    """

    def __init__(self, clock: Clock) -> None:
        self.enabled = True
        self.scale = 1.0
        self._clock = clock
        self._calls: defaultdict[str, deque[float]] = defaultdict(deque[float])

    def take(self, method: str, channel: str = "") -> int | None:
        """Count a call; return None, or the whole seconds of Slack's Retry-After.

        A refused call does not count.
        """
        limit = LIMITS.get(method)
        if not self.enabled or limit is None:
            return None
        key = f"{method} {channel}" if method in PER_CHANNEL else method
        calls, now = self._calls[key], self._clock.now()
        while calls and calls[0] <= now - limit.seconds:
            calls.popleft()
        allowed = max(1, int(limit.calls * self.scale))
        if len(calls) >= allowed:
            free_at = calls[len(calls) - allowed] + limit.seconds
            return max(1, math.ceil(free_at - now))
        calls.append(now)
        return None
