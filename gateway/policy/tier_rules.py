"""Policy model of the tiers: quorum, time limits and escalation of each."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from twokey.gateway.approvals.requirement import Notify
from twokey.gateway.policy.fields import (
    ChannelRef,
    Count,
    Duration,
    EscalationTarget,
    RequirementName,
    Reviewers,
    RoleName,
    ShareOfTime,
)
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.tiers import Tier


class NotifyRule(Record):
    """What the tier ``notify`` needs: a place for its notifications.

    Without a ``channel`` they go where the cards of the tool go.
    """

    channel: ChannelRef | None = None


class WaitingRule(Record):
    """Who decides at a tier that waits for people, and how it passes its time.

    ``needs`` names a requirement; the narrower place, a tool, says who is asked first.
    ``authorization`` is how long an approved call may wait to run.
    ``remind_at`` and ``escalate_at`` are shares of the time that people have; at the
    second, ``escalate_to`` is called: a role, a person or a channel. ``notify`` is for
    roles that say nothing themselves; with ``none`` nobody is asked until then.
    """

    needs: RequirementName | None = None
    expires_in: Duration | None = None
    authorization: Duration | None = None
    remind_at: ShareOfTime | None = None
    escalate_at: ShareOfTime | None = None
    escalate_to: EscalationTarget | None = None
    notify: Notify | None = None

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.escalate_at is None) != (self.escalate_to is None):
            raise ValueError(
                "'escalate_at' says when and 'escalate_to' who is called; set both."
            )
        return self

    @model_validator(mode="after")
    def _reminded(self) -> Self:
        if self.notify is Notify.NONE and self.remind_at is not None:
            raise ValueError(
                "'notify: none' mentions nobody, and 'remind_at' mentions those who "
                "have not decided; keep one of them."
            )
        return self


class ApproveRule(WaitingRule):
    """What the tier ``approve`` needs: one reviewer or a requirement, in a time."""


class EscalateRule(WaitingRule):
    """What the tier ``escalate`` needs: a requirement, or one written out here.

    ``of`` unset means the tool's reviewers. An approval within ``ask_again_within``
    after the call was shown is asked for once more.
    """

    approvals: Count = Field(default=2, ge=2, le=20)
    of: Reviewers | None = None
    at_least: dict[RoleName, Count] = Field(default_factory=dict)
    ask_again_within: Duration | None = None

    @model_validator(mode="after")
    def _once(self) -> Self:
        written = {"approvals", "of", "at_least"} & self.model_fields_set
        if self.needs is not None and written:
            raise ValueError(
                f"'needs' says who decides, and so does {min(written)!r}; keep one."
            )
        return self


class TierRules(Record):
    """The tiers that can be set up."""

    notify: NotifyRule = NotifyRule()
    approve: ApproveRule = ApproveRule()
    escalate: EscalateRule = EscalateRule()

    def waiting(self, tier: Tier) -> WaitingRule:
        """Return how a tier passes its time."""
        return self.escalate if tier is Tier.ESCALATE else self.approve
