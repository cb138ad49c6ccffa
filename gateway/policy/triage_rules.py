"""Policy model of triage: when a model is asked, and how far it may raise a tier."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, field_validator

from twokey.gateway.policy.fields import Distinct, Duration, StrictBool, one_or_many
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.tiers import Tier

LONGEST = timedelta(seconds=30)
"""The longest time-out: an agent waits, and what its turn reserved ends in a minute."""


class TriageRule(Record):
    """How triage is asked about the calls of a tool; without one it is not.

    Attributes:
        tiers: calls of these tiers are put to it; an empty list switches it off.
        timeout: an answer that takes longer changes nothing.
        may_deny: it may refuse a call; else its ``deny`` counts as ``escalate``.
    """

    tiers: Annotated[tuple[Tier, ...], BeforeValidator(one_or_many), Distinct] = (
        Tier.APPROVE,
        Tier.ESCALATE,
    )
    timeout: Duration = timedelta(seconds=2)
    may_deny: StrictBool = False

    @field_validator("tiers")
    @classmethod
    def _can_rise(cls, tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
        if Tier.DENY in tiers:
            raise ValueError("what is denied is not put to triage; remove 'deny'.")
        return tiers

    @field_validator("timeout")
    @classmethod
    def _short(cls, timeout: timedelta) -> timedelta:
        if timeout > LONGEST:
            raise ValueError(
                f"an agent would wait {timeout.total_seconds():.0f} s for an opinion; "
                f"{LONGEST.total_seconds():.0f}s is the most."
            )
        return timeout
