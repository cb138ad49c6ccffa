"""Records of roles, requirements, votes, findings and floors."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Literal, Self

from pydantic import Field

from keyturn.gateway.protocol.records import (
    Finding,
    Person,
    Reading,
    Record,
    Tier,
    Verb,
)


class Signature(Record):
    """A signature, and the signed fields that the decision itself lacks.

    Attributes:
        key: id of the key, a hint for the verifier.
        sig: the signature, as base64.
        verb: of the decision; None for a finding about an execution.
        version: of the card that the person saw.
        seen: hash of the call that the person saw, if it differs from the decided call
            because they edited it.
        roles: of the person.
        request: digest of the Slack request with the decision.
        display: digest of the blocks that the person saw, if known.
        policy: digest of the evaluated policy.
    """

    key: str
    sig: str
    verb: Verb | None = None
    version: int
    seen: str = ""
    roles: tuple[str, ...] = ()
    request: str = ""
    display: str = ""
    policy: str = ""


class Notify(StrEnum):
    """Notification about a waiting call: none, a mention, or a direct message."""

    NONE = "none"
    MENTION = "mention"
    DM = "dm"

    @classmethod
    def strongest(cls, *given: Notify) -> Notify:
        """Return the notification that reaches people most directly."""
        return max(given, key=[*cls].index)


class Asking(Record):
    """People of a role to notify now; computed whenever a card is drawn.

    Attributes:
        users: people to ask.
        usergroups: user groups to mention.
        on_call: people to ask instead of all of these, if they are enough.
        quiet_until_ms: end of quiet hours without notifications; 0 for none.
        silent: reason for no notifications: a ``flood`` of calls, or ``enough`` cards
            in the hour before.
        taken_by: user groups that contain, or may contain, the person of "I'm on it".
        unreachable: people who got no direct message, with Slack's error code.
    """

    users: tuple[str, ...] = ()
    usergroups: tuple[str, ...] = ()
    on_call: tuple[str, ...] = ()
    quiet_until_ms: int = 0
    silent: Literal["", "flood", "enough"] = ""
    taken_by: tuple[str, ...] = ()
    unreachable: dict[str, str] = Field(default_factory=dict)


class Role(Record):
    """A role: Slack user ids and user group ids. Both empty: it has no members.

    ``notify`` selects the notification of a card, and ``asking`` the people to notify
    now. Neither affects the right to decide.
    """

    name: str
    users: tuple[str, ...] = ()
    usergroups: tuple[str, ...] = ()
    notify: Notify = Notify.MENTION
    # Excluded from every document: it is temporary, and must neither be stored nor make
    # a card look as if its reviewers had changed.
    asking: Asking | None = Field(default=None, exclude=True, repr=False)

    @property
    def asked(self) -> Asking:
        """Return the people to notify: all of the role, unless computed otherwise."""
        return self.asking or Asking(users=self.users, usergroups=self.usergroups)


class Requirement(Record):
    """The votes that an item needs to be authorized.

    Attributes:
        approvals: number of distinct people.
        of: a vote counts if its person has one of these roles; empty: none counts.
        also: further requirements that the same votes have to meet.
        editor_may_vote: False bars the editor of the arguments from approving them.
    """

    # At least one: a requirement of nobody would be met without a vote.
    approvals: int = Field(ge=1)
    of: tuple[Role, ...]
    also: tuple[Requirement, ...] = ()
    editor_may_vote: bool = True

    def with_roles(self, change: Callable[[Role], Role]) -> Self:
        """Return the same requirement with changed roles."""
        return self.with_(
            of=tuple(map(change, self.of)),
            also=tuple(part.with_roles(change) for part in self.also),
        )

    @property
    def parts(self) -> tuple[Requirement, ...]:
        """Return every requirement that has to be met, flattened."""
        own = self.with_(also=(), editor_may_vote=True)
        return (own, *(part for other in self.also for part in other.parts))

    @property
    def roles(self) -> tuple[Role, ...]:
        """Return every role that may vote, each name once."""
        named = {role.name: role for part in self.parts for role in part.of}
        return tuple(named.values())


class Vote(Record):
    """One person's approval; it counts for this action hash and no other.

    ``on_behalf_of`` are delegators whose roles it uses: they cannot vote again.
    ``membership_at_ms`` is the time of Slack's answer about the roles. ``reason`` is
    shown to the agent. ``signed`` is the bot's signature.
    """

    by: Person
    roles: tuple[str, ...]
    action_hash: str
    at_ms: int
    on_behalf_of: tuple[Person, ...] = ()
    membership_at_ms: int = 0
    reason: str = ""
    signed: Signature | None = None


class SpotCheck(Record):
    """A question after a run, to one of these roles: was the call right?

    ``asked_at_ms`` is 0 for a call that was drawn before it ran and has not ended.
    ``answer`` is ``right`` or ``wrong``, and empty until a person answers.
    """

    of: tuple[Role, ...] = ()
    asked_at_ms: int = 0
    answer: str = ""
    by: Person | None = None
    at_ms: int = 0


class Observation(Record):
    """One person's finding about an execution in doubt, with a note.

    It is about the attempt with this ``fence``, and counts like a vote.
    """

    finding: Finding
    vote: Vote
    note: str = ""
    fence: int

    @property
    def by(self) -> Person:
        """Return the person who found it out."""
        return self.vote.by


class Floor(Record):
    """The call's minimum need: as it was opened, or after its last edit.

    ``policy_digest`` is of the policy that raised the need since. Under that policy the
    raise ends with its cause; another policy lowers nothing.
    """

    tier: Tier
    reasons: tuple[str, ...]
    requirement: Requirement
    policy_digest: str


class Revocation(Record):
    """Reason for taking back an unused authorization.

    ``reason`` is a sentence of Keyturn. ``times`` counts the revocations. ``is_final``:
    the call ended with it; otherwise it went back to people. ``is_restored``: the
    record is from an older copy, so the call may have run since. ``by`` is the person
    who revoked a standing approval. ``reading`` is the tool's reading of an edit that
    it would not run unchanged. ``unused_fence``: no tool began in this attempt or
    before it.
    """

    reason: str
    at_ms: int
    times: int = 1
    is_final: bool = False
    is_restored: bool = False
    by: Person | None = None
    reading: Reading | None = None
    unused_fence: int = 0
