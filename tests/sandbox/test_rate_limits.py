"""Calls that come faster than Slack allows are rate limited."""

import pytest

from keyturn.sandbox.clock import Clock
from keyturn.sandbox.rate_limits import LIMITS, UNLIMITED, RateLimits
from keyturn.sandbox.web_api import APP_METHODS, METHODS


def taken(rates: RateLimits, method: str, calls: int, channel: str = "") -> int:
    """Return how many of so many calls may pass."""
    return sum(rates.take(method, channel) is None for _ in range(calls))


def test_every_method_has_a_limit_or_is_named_unlimited() -> None:
    assert set(LIMITS) | set(UNLIMITED) == set(METHODS) | APP_METHODS


@pytest.mark.parametrize(
    ("method", "allowed"),
    [("usergroups.users.list", 20), ("chat.update", 50), ("views.open", 100)],
)
def test_a_tier_allows_its_figure_in_any_minute(method: str, allowed: int) -> None:
    clock = Clock()
    rates = RateLimits(clock)

    assert taken(rates, method, allowed + 5) == allowed
    clock.advance(30)
    assert taken(rates, method, 5) == 0
    clock.advance(31)
    assert taken(rates, method, allowed + 5) == allowed


def test_posting_is_counted_per_channel_one_a_second_in_bursts_of_ten() -> None:
    clock = Clock()
    rates = RateLimits(clock)

    assert taken(rates, "chat.postMessage", 15, "C1") == 10
    assert taken(rates, "chat.postMessage", 15, "C2") == 10
    passed = 0
    for _ in range(30):
        clock.advance(1)
        passed += taken(rates, "chat.postMessage", 1, "C1")
    assert 20 <= passed <= 30
