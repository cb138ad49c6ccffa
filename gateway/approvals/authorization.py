"""Records of a call's minimum requirement (its floor) and of revoked authorizations."""

from __future__ import annotations

from twokey.gateway.approvals.requirement import Requirement
from twokey.gateway.protocol.records import Person, Record
from twokey.gateway.protocol.tiers import Tier


class Floor(Record):
    """What a call needed when it was opened, or by its last edit: its floor.

    ``policy_digest`` is of the policy that raised it since. While that one is in force,
    the raise ends with its cause; another policy lowers nothing.
    """

    tier: Tier
    reasons: tuple[str, ...]
    requirement: Requirement
    policy_digest: str


class Revocation(Record):
    """Why an authorization was taken back before it was used.

    ``reason`` is a sentence of ours. ``times`` counts how often it was.
    ``is_final`` says that the call ended by it; else it went back to people.
    ``is_restored`` says that the record is from an older copy: it may have run since.
    ``by`` is the person who revoked a standing approval.
    """

    reason: str
    at_ms: int
    times: int = 1
    is_final: bool = False
    is_restored: bool = False
    by: Person | None = None
