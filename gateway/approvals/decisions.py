"""Decision and outcome types: the choices of a reviewer, and their results.

Losing a race is an outcome, not an error: every function that takes a decision returns
one of the outcomes here, and the person gets it as one calm sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.precedents import Precedent
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.timing import end_of, is_late
from keyturn.gateway.protocol.records import Finding, ItemState, Person, Record
from keyturn.gateway.protocol.strict_json import JsonObject


class AccountKind(StrEnum):
    """Kind of a Slack account; only a member may decide."""

    MEMBER = "member"
    GUEST = "guest"
    STRANGER = "stranger"
    BOT = "bot"
    DEACTIVATED = "deactivated"
    UNKNOWN = "unknown"


class Gesture(StrEnum):
    """Way in which a person made a request; the audit log keeps it.

    ``API`` is a program that acts for a person by the Python interface.
    """

    BUTTON = "button"
    MODAL = "modal"
    THREAD_REPLY = "thread_reply"
    APP_HOME = "app_home"
    SLASH_COMMAND = "slash_command"
    CLI = "cli"
    API = "api"


class Reviewer(Record):
    """A person who clicked, as the bot resolved them just now.

    Attributes:
        account: kind of the account.
        usergroups: ids of their Slack user groups.
        unknown_groups: ids of groups that Slack could not confirm; while a role depends
            on one of them, no vote is recorded.
        membership_age_ms: age of the oldest of Slack's answers.
        retry_in_s: time until an unconfirmed group can be looked up again.
        stands_in_for: delegators, who handed their queue to this person.
        gesture: of this person's request.
    """

    team: str
    user: str
    name: str = ""
    usergroups: frozenset[str] = frozenset()
    unknown_groups: frozenset[str] = frozenset()
    # Unknown until Slack has answered; an unknown account decides nothing.
    account: AccountKind = AccountKind.UNKNOWN
    membership_age_ms: int = 0
    retry_in_s: int = 0
    stands_in_for: tuple[Reviewer, ...] = ()
    gesture: Gesture = Gesture.API

    @property
    def person(self) -> Person:
        """Return the identity without the resolved fields."""
        return Person(team=self.team, user=self.user, name=self.name)


class _Named(Record):
    @property
    def kind(self) -> str:
        """Return its kind, the name in texts and logs."""
        return type(self).__name__.lower()


class Approve(_Named):
    """Run it as shown; ``reason`` is read by the agent."""

    reason: str = ""


class Edit(_Named):
    """Run it with these arguments instead."""

    args: JsonObject
    reason: str = ""


class Reject(_Named):
    """Do not run it; ``reason`` is read by the agent.

    From a person who asked for the call, it is a withdrawal.
    """

    reason: str = ""


class Respond(_Named):
    """Do not run it; the agent reads ``message`` as the tool's answer.

    To a call that asks questions, ``answers`` are given instead, one per question in
    order; ``message`` answers a single one.
    """

    message: str = ""
    answers: tuple[str, ...] = ()


class Reconcile(_Named):
    """Reconcile an execution in doubt: it ran, run it again, or skip it."""

    finding: Finding
    note: str = ""


Decision = Approve | Edit | Reject | Respond | Reconcile


@dataclass(frozen=True)
class CallNow:
    """Facts about a call at the moment of its decision.

    Attributes:
        policy_now: the current policy's decision on the arguments that would run.
        voters: earlier voters for this item, resolved now. Their roles are checked
            again when a vote would complete the quorum; a missing voter is unknown, and
            the vote of an unknown person completes nothing.
        waiting_now: for an edit, the current policy's decision on the unedited call.
            Its reviewers may edit the call and leave the approval to others.
        repeats: it needs another look once others of the gesture are approved.
    """

    policy_now: PolicyDecision
    voters: Sequence[Reviewer] = ()
    waiting_now: PolicyDecision | None = None
    repeats: bool = False


class Click(Record):
    """The item as the reviewer saw it: ids, version and hash.

    ``display_digest`` is of the displayed blocks, if known.

    ``is_shared`` is set for a gesture about many items: then it approves none that is
    escalated now.
    """

    approval: str
    index: int
    version: int
    action_hash: str
    request_digest: str = ""
    display_digest: str = ""
    is_shared: bool = False


class Decided(_Named):
    """This decision ended the item's wait, or its doubt."""

    approval: Approval
    index: int


class Voted(_Named):
    """This decision counts; more people are needed."""

    approval: Approval
    index: int
    have: int
    need: int


class Repeated(_Named):
    """Not approved yet: a call with the same effect was approved since it was shown.

    An edit is kept. ``precedent`` is the newest such call.
    """

    approval: Approval
    index: int
    precedent: Precedent


class TooSoon(_Named):
    """Not approved yet: an escalated call was approved this soon after it was shown.

    The next approval of the same person counts.
    """

    approval: Approval
    index: int
    after_ms: int


class Stale(_Named):
    """Another person or event was faster; nothing changed."""

    item: Item


class Changed(_Named):
    """The item differs from the one that was seen: an edit made a newer version."""

    seen_version: int
    version: int


class Expired(_Named):
    """The time to decide is over; nothing was recorded."""

    expires_at_ms: int


class Forbidden(_Named):
    """This person may not decide this; ``reason`` is a sentence for them."""

    reason: str


class Invalid(_Named):
    """The decision itself is not acceptable.

    ``errors`` maps a JSON Pointer into the edited arguments, or "" for the whole, to
    a sentence for the person.
    """

    errors: dict[str, str]


class Unknown(_Named):
    """No such approval: never existed, or kept no longer."""


class GestureDecided(_Named):
    """One gesture decided these calls; each is named by its position on the card.

    Attributes:
        approvals: the next versions of the approvals that changed, by id.
        withdrawn: calls that a person who had asked for them took back.
        waiting: decided calls that need more people.
        left_out: skipped calls. They were escalated since, and need a separate
            decision; or they repeat a call that was approved since, or by the same
            gesture, which the reviewer has to see first.
        already: calls that the same person approved before, and that need others.
    """

    approvals: dict[str, Approval]
    approved: tuple[int, ...] = ()
    edited: tuple[int, ...] = ()
    rejected: tuple[int, ...] = ()
    withdrawn: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    already: tuple[int, ...] = ()


class GestureRefused(_Named):
    """Nothing of a gesture was recorded, because of these calls.

    ``refusals`` has the reason, by the place of each call.
    """

    refusals: dict[int, Stale | Changed | Expired | Forbidden | Invalid | Unknown]


Refusal = Stale | Changed | Expired | Forbidden | Invalid | Unknown
Outcome = Decided | Voted | Repeated | TooSoon | Refusal
GestureOutcome = GestureDecided | GestureRefused | Outcome


def explain_state(
    approval: Approval, index: int | None, *, seen_version: int, now_ms: int
) -> Expired | Stale | Changed:
    """Return why a click on an older version of an item does not count.

    Report the end of the item first; its version no longer matters then.

    Args:
        approval: the current record.
        index: the item, or None for the batch as a whole.
        seen_version: the version of the click.
        now_ms: the store's clock.
    """
    changed = Changed(seen_version=seen_version, version=approval.version)
    if index is None or index >= len(approval.items):
        return changed
    item = approval.items[index]
    if is_late(approval, item, now_ms) or item.state is ItemState.EXPIRED:
        return Expired(expires_at_ms=end_of(approval, item))
    return changed if item.is_pending else Stale(item=item)
