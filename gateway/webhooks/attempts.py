"""What follows from an attempt to send a message: sent, later, or given up."""

from __future__ import annotations

from typing import NamedTuple

from twokey.gateway.store.webhooks import Delivery, Outcome
from twokey.gateway.webhooks.posting import GONE, Answer

FIRST_MS = 2_000
"""The pause after the first attempt; each one after it is twice as long."""

LONGEST_MS = 60 * 60 * 1000
"""The longest pause."""


class Next(NamedTuple):
    """What becomes of a message, and when it is sent again."""

    outcome: Outcome
    delivery: Delivery
    delay_ms: int = 0


def after(delivery: Delivery, answer: Answer, *, now_ms: int, spread: float) -> Next:
    """Return what follows from an answer.

    Args:
        delivery: what was sent.
        answer: what came of it.
        now_ms: the time of the store.
        spread: from 0 to 1, at random: pauses are 50 to 100 % of their length, so that
            messages that failed together are not all sent again together.
    """
    attempts = delivery.attempts + 1
    tried = delivery.with_(attempts=attempts, error=answer.error)
    if not answer.error:
        return Next(Outcome.SENT, tried)
    # At its very end it is tried once more, whatever pause would have come.
    if answer.status == GONE or now_ms >= delivery.ends_ms:
        return Next(Outcome.DEAD, tried)
    pause_ms = min(FIRST_MS * 2 ** min(attempts - 1, 20), LONGEST_MS)
    pause_ms = max(pause_ms * (0.5 + spread / 2), answer.pause_s * 1000)
    return Next(
        Outcome.LATER, tried, int(min(max(pause_ms, 1), delivery.ends_ms - now_ms))
    )
