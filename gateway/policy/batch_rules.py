"""Policy model of ``batch``: when calls of separate requests share one card."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from twokey.gateway.policy.fields import Count, Duration
from twokey.gateway.protocol.records import Record

LONGEST = timedelta(minutes=10)
"""How long a card may wait for other calls at most, whatever the policy says."""

MOST_CALLS = 50
"""How many calls share a card at most: as many as one decision writes at once."""


class BatchRule(Record):
    """Which calls of a tool, of different turns and threads, share one card.

    With ``by: window`` these are all that come ``within`` a time after the first one;
    with ``by: task`` only those of one task that the agent names. ``up_to`` calls at
    most: the card is posted when there are so many, or when the time is over.
    """

    by: Literal["window", "task"] = "window"
    within: Duration
    up_to: Count = Field(default=MOST_CALLS, ge=2, le=MOST_CALLS)

    @model_validator(mode="after")
    def _is_short(self) -> BatchRule:
        if self.within > LONGEST:
            raise ValueError(
                "'within' is 10 minutes at most: people wait for the card."
            )
        return self

    @property
    def within_s(self) -> float:
        """Return the time that the first call waits for others, in seconds."""
        return self.within.total_seconds()
