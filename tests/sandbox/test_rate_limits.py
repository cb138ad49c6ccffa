"""Calls that come faster than Slack allows are rate limited."""

from typing import Any, cast

import pytest
from slack_sdk.errors import SlackApiError

from keyturn.sandbox.clock import Clock
from keyturn.sandbox.rate_limits import LIMITS, UNLIMITED, RateLimits
from keyturn.sandbox.server import Sandbox
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


async def test_the_fifty_first_update_in_a_minute_gets_429_with_retry_after(
    sandbox: Sandbox, client: Any
) -> None:
    posted = await client.chat_postMessage(channel="C0APPROVALS", text="t")

    async def update() -> None:
        await client.chat_update(channel="C0APPROVALS", ts=posted["ts"], text="u")

    for _ in range(50):
        await update()
    with pytest.raises(SlackApiError) as caught:
        await update()

    response = cast("Any", caught.value).response
    assert response.status_code == 429
    assert response["error"] == "ratelimited"
    wait = int(response.headers["Retry-After"])
    assert 1 <= wait <= 60
    assert sandbox.calls[-1].error == "ratelimited"
    sandbox.clock.advance(wait)
    await update()
