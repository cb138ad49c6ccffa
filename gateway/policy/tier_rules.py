"""Model what each tier needs: how many people, how long, and who is called later."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from gateway.approvals.record import Record
from gateway.approvals.tiers import Tier
from gateway.policy.fields import (
    Called,
    ChannelRef,
    Count,
    Duration,
    Percent,
    Reviewers,
    RoleName,
)


class NotifyRule(Record):
    """What the tier ``notify`` needs: a place for its notices.

    Without a ``channel`` they go where the cards of the tool go.
    """

    channel: ChannelRef | None = None


class WaitingRule(Record):
    """How a tier that waits for people passes its time.

    ``authorization`` is how long an approved call may wait to run.
    ``remind_at`` and ``escalate_at`` are shares of the time that people have; at the
    second, ``escalate_to`` is called: a role, a person or a channel.
    """

    expires_in: Duration | None = None
    authorization: Duration | None = None
    remind_at: Percent | None = None
    escalate_at: Percent | None = None
    escalate_to: Called | None = None

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.escalate_at is None) != (self.escalate_to is None):
            raise ValueError(
                "'escalate_at' says when and 'escalate_to' who is called; set both."
            )
        return self


class ApproveRule(WaitingRule):
    """What the tier ``approve`` needs: one person, within a time."""


class EscalateRule(WaitingRule):
    """What the tier ``escalate`` needs; ``of`` unset means the tool's reviewers."""

    approvals: Count = Field(default=2, ge=2, le=20)
    of: Reviewers | None = None
    at_least: dict[RoleName, Count] = Field(default_factory=dict)


class TierRules(Record):
    """The tiers that can be set up."""

    notify: NotifyRule = NotifyRule()
    approve: ApproveRule = ApproveRule()
    escalate: EscalateRule = EscalateRule()

    def waiting(self, tier: Tier) -> WaitingRule:
        """Return how a tier passes its time."""
        return self.escalate if tier is Tier.ESCALATE else self.approve
