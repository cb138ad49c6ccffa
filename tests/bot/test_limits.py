"""Calls go out as fast as Slack promises to take them, and no faster."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from keyturn.bot.delivery.outbox_queue import OutboxQueue
from keyturn.bot.limits import POST, UPDATE, Limits
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.sandbox.clock import Clock
from keyturn.sandbox.rate_limits import RateLimits

pytestmark = pytest.mark.usefixtures("slacks_limits")


@dataclass
class Hands(Clock):
    """A clock that a test moves."""

    at: float = 1000.0

    def now(self) -> float:
        return self.at


def limits_at(clock: Hands) -> Limits:
    return Limits(clock.now)


def event(approval: str, name: EventName, seq: int = 0) -> Event:
    return Event(name=name, tenant="default", approval=approval, seq=f"{seq}-0")


def test_a_burst_goes_out_at_once_and_the_rest_in_time() -> None:
    clock = Hands()
    limits = limits_at(clock)

    burst = 0
    while limits.take(UPDATE) == 0:
        burst += 1
    wait_s = limits.wait_s(UPDATE)
    clock.at += wait_s

    assert burst == 6
    assert 1.3 < wait_s < 1.4
    assert limits.take(UPDATE) == 0
    assert limits.take(UPDATE) > 0


def test_after_a_429_only_its_method_and_channel_stand_still() -> None:
    clock = Hands()
    limits = limits_at(clock)

    limits.refused(POST, "C1", 30)

    assert limits.wait_s(POST, "C1") == 30
    assert limits.wait_s(POST, "C2") == limits.wait_s(UPDATE) == 0
    clock.at += 30
    assert limits.take(POST, "C1") == 0
    assert limits.take(POST, "C1") > 0


@pytest.mark.parametrize(("method", "channel"), [(POST, "C1"), (UPDATE, "")])
def test_slack_never_has_to_refuse_a_storm(method: str, channel: str) -> None:
    clock = Hands()
    limits, slack = limits_at(clock), RateLimits(clock)

    for _ in range(300):
        clock.at += limits.wait_s(method, channel)
        assert limits.take(method, channel) == 0
        assert slack.take(method, channel) is None


def test_news_hurries_a_topic_that_waits_and_none_that_fails() -> None:
    queue = OutboxQueue()
    queue.add(event("ap1", EventName.APPROVAL_OPENED))
    (entry,) = queue
    entry.not_before = 50.0

    queue.add(event("ap1", EventName.ITEM_AUTHORIZED))
    assert entry.not_before == 0
    entry.failures, entry.not_before = 3, 50.0
    queue.add(event("ap1", EventName.ITEM_EXECUTED))
    assert entry.not_before == 50


def test_a_channels_name_and_its_id_share_one_limit() -> None:
    limits = limits_at(Hands())
    limits.alias_channel("#refunds", "C1")
    while limits.take(POST, "C1") == 0:
        pass

    assert limits.wait_s(POST, "#refunds") > 0
