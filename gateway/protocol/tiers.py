"""Risk tiers in order; joining two gives the higher one."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """What a call needs before it may run, from least to most.

    ``auto`` runs and is recorded, ``notify`` runs and posts a notice, ``approve``
    needs one reviewer, ``escalate`` two distinct people, ``deny`` never runs.
    """

    AUTO = "auto"
    NOTIFY = "notify"
    APPROVE = "approve"
    ESCALATE = "escalate"
    DENY = "deny"

    @property
    def rank(self) -> int:
        """Return the place in the order, 0 for ``auto``."""
        return _RANKS[self]

    @property
    def needs_people(self) -> bool:
        """Return whether a person has to decide before the call may run."""
        return self in {Tier.APPROVE, Tier.ESCALATE}

    @property
    def is_auto_approved(self) -> bool:
        """Return whether the call runs without a person's decision."""
        return self in {Tier.AUTO, Tier.NOTIFY}


_RANKS = {tier: rank for rank, tier in enumerate(Tier)}


def join(first: Tier, *others: Tier) -> Tier:
    """Return the highest of the tiers; the only way in which tiers combine."""
    # By rank: as texts, "auto" > "approve".
    return max((first, *others), key=lambda tier: tier.rank)
