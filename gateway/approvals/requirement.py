"""Records of roles, requirements, votes, findings, and what a call needs at least."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Self

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
    """A signature, and what was signed that the decision itself does not hold.

    Attributes:
        key: id of the key, a hint which one to try.
        sig: the signature, as base64.
        verb: what the person said; None: what they found out about an execution.
        version: of the card that they saw.
        seen: hash of the call that they saw, where it is another one than they decided
            for: they changed it.
        roles: that they held.
        request: digest of the Slack request in which they said it.
        display: digest of the blocks that they saw, where it is known.
        policy: digest of the policy that was asked.
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
    """How people learn that a call waits for them: not, by a mention, by a message."""

    NONE = "none"
    MENTION = "mention"
    DM = "dm"

    @classmethod
    def strongest(cls, *given: Notify) -> Notify:
        """Return the one of these that reaches people most directly."""
        return max(given, key=[*cls].index)


class Asking(Record):
    """Whom of a role to ask at this moment; computed whenever a card is drawn.

    Attributes:
        users: people to ask.
        usergroups: user groups to mention.
        on_call: who is asked instead of all of these, as long as they are enough.
        quiet_until_ms: end of the quiet hours in which nobody is asked; 0 for none.
        taken_by: user groups that hold, or may hold, who said "I'm on it".
        unreachable: people who got no direct message, with Slack's word for why.
    """

    users: tuple[str, ...] = ()
    usergroups: tuple[str, ...] = ()
    on_call: tuple[str, ...] = ()
    quiet_until_ms: int = 0
    taken_by: tuple[str, ...] = ()
    unreachable: dict[str, str] = Field(default_factory=dict)


class Role(Record):
    """Who holds a role: Slack user ids and user group ids. Both empty: nobody.

    ``notify`` says how its holders learn of a card, and ``asking`` whom of them to ask
    now; neither changes anything about who may decide.
    """

    name: str
    users: tuple[str, ...] = ()
    usergroups: tuple[str, ...] = ()
    notify: Notify = Notify.MENTION
    # Left out of every document: it is of one moment, and must neither be stored nor
    # make a card look as if somebody else had to decide.
    asking: Asking | None = Field(default=None, exclude=True, repr=False)

    @property
    def asked(self) -> Asking:
        """Return whom to ask of it: everybody, when nothing else was worked out."""
        return self.asking or Asking(users=self.users, usergroups=self.usergroups)


class Requirement(Record):
    """Who must agree before an item is authorized.

    Attributes:
        approvals: how many distinct people.
        of: a vote counts when its person holds one of these roles; empty: none does.
        at_least: role name to the number of votes that must hold it.
        also: requirements that have to be met as well, by the same votes.
        editor_may_vote: False keeps the editor of the arguments from approving them.
    """

    # At least one: a requirement of nobody would be met by nobody's vote.
    approvals: int = Field(ge=1)
    of: tuple[Role, ...]
    at_least: dict[str, int] = Field(default_factory=dict)
    also: tuple[Requirement, ...] = ()
    editor_may_vote: bool = True

    def with_roles(self, change: Callable[[Role], Role]) -> Self:
        """Return the same requirement of changed roles."""
        return self.with_(
            of=tuple(map(change, self.of)),
            also=tuple(part.with_roles(change) for part in self.also),
        )

    @property
    def parts(self) -> tuple[Requirement, ...]:
        """Return every requirement that has to be met, none with another inside."""
        if not self.also and self.editor_may_vote:
            return (self,)
        own = self.with_(also=(), editor_may_vote=True)
        return (own, *(part for other in self.also for part in other.parts))

    @property
    def roles(self) -> tuple[Role, ...]:
        """Return every role whose holders may vote, each name once."""
        # As nearly all have it: a decision asks twenty times.
        if not self.also and len(self.of) == 1:
            return self.of
        named = {role.name: role for part in self.parts for role in part.of}
        return tuple(named.values())


class Vote(Record):
    """One person's approve; it counts for this action hash and no other.

    ``on_behalf_of`` names those whose roles it uses up as well: they vote no more.
    ``membership_at_ms`` is when Slack was asked for the roles.
    ``reason`` is why; the agent reads it. ``signed`` is the bot's signature.
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
    """Whether a call that ran was right, asked afterwards of one of these roles.

    ``asked_at_ms`` is 0 for a call that was drawn before it ran, and has not ended.
    ``answer`` is ``right`` or ``wrong``, and empty while nobody answered.
    """

    of: tuple[Role, ...] = ()
    asked_at_ms: int = 0
    answer: str = ""
    by: Person | None = None
    at_ms: int = 0


class Observation(Record):
    """What one person found out about an execution in doubt, with their note.

    It is about the attempt with this ``fence``, and counts like a vote.
    """

    finding: Finding
    vote: Vote
    note: str = ""
    fence: int

    @property
    def by(self) -> Person:
        """Return who found it out."""
        return self.vote.by


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
