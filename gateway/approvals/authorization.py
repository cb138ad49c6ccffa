"""Records of a call's minimum requirement (its floor) and of revoked authorizations."""

from __future__ import annotations

from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.protocol.records import Person, Reading, Record
from keyturn.gateway.protocol.tiers import Tier


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
    ``reading`` is how the tool reads an edit that it would not run as it is.
    ``unused_fence`` is the last attempt before which, and in which, no tool began.
    """

    reason: str
    at_ms: int
    times: int = 1
    is_final: bool = False
    is_restored: bool = False
    by: Person | None = None
    reading: Reading | None = None
    unused_fence: int = 0
