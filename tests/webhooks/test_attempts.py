"""A message is sent again with longer and longer pauses, until its own end."""

from __future__ import annotations

import pytest

from twokey.gateway.protocol.webhooks import DECIDED, News
from twokey.gateway.store.webhooks import Delivery, Outcome
from twokey.gateway.webhooks.attempts import FIRST_MS, LONGEST_MS, after
from twokey.gateway.webhooks.posting import Answer

NEW = Delivery(id="msg_1", kind=DECIDED, news=News(), at_ms=0, ends_ms=10**9)
FAILED = Answer(500, "status 500")


def test_what_arrived_is_not_sent_again() -> None:
    assert after(NEW, Answer(204), now_ms=5, spread=0).outcome is Outcome.SENT


def test_pauses_become_longer_up_to_an_hour() -> None:
    pauses: list[int] = []
    tried = NEW
    for _ in range(40):
        found = after(tried, FAILED, now_ms=0, spread=1)
        assert found.outcome is Outcome.LATER
        pauses.append(found.delay_ms)
        tried = found.delivery

    assert pauses[:3] == [FIRST_MS, 2 * FIRST_MS, 4 * FIRST_MS]
    assert pauses[-1] == LONGEST_MS
    assert tried.attempts == 40
    assert tried.error == "status 500"


@pytest.mark.parametrize("spread", [0, 0.5, 1])
def test_pauses_are_spread(spread: float) -> None:
    found = after(NEW, FAILED, now_ms=0, spread=spread)

    assert found.delay_ms == FIRST_MS * (0.5 + spread / 2)


def test_a_receiver_that_asks_for_a_pause_gets_it() -> None:
    answer = Answer(429, "status 429", pause_s=60)

    assert after(NEW, answer, now_ms=0, spread=0).delay_ms == 60_000


def test_at_its_end_a_message_is_tried_once_more() -> None:
    last = after(NEW, Answer(429, "x", pause_s=3600), now_ms=10**9 - 7, spread=0)
    over = after(NEW, FAILED, now_ms=10**9, spread=0)

    assert (last.outcome, last.delay_ms) == (Outcome.LATER, 7)
    assert over.outcome is Outcome.DEAD


def test_a_receiver_that_is_gone_gets_nothing_again() -> None:
    found = after(NEW, Answer(410, "status 410"), now_ms=0, spread=0)

    assert found.outcome is Outcome.DEAD
