"""Describe what an agent's run-time context may ask for beside the policy."""

from __future__ import annotations

from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import ReasonFor, Verb


class Override(Record):
    """What a run of an agent asks for one tool.

    It may always ask for more: a higher tier, fewer decisions, a reason. It gets less
    only for a tool that the policy marks ``overridable``, and never less than a rule
    of ``raise`` demands.

    Attributes:
        tier: instead of the listed tier.
        allow: which decisions reviewers have.
        requires_reason: the decisions that need a reason.
    """

    tier: Tier | None = None
    allow: tuple[Verb, ...] | None = None
    requires_reason: ReasonFor | None = None
