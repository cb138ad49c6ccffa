"""Give an approval more time, or say who looks at it, as pure functions.

Neither decides anything, and neither keeps others from deciding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from gateway.approvals import quorum
from gateway.approvals.decisions import Expired, Forbidden, Refusal, Reviewer, Stale
from gateway.approvals.events import Event, EventName
from gateway.approvals.lifecycle import ApprovalState
from gateway.approvals.record import Approval, Taken

LONGEST = 2
"""An approval waits at most so many times as long as it was opened for."""

TAKEN_FOR = timedelta(minutes=10)
"""How long "I'm on it" stands by itself."""

_HINT_SHARE = 5  # the last fifth of the time
_TAKEN_MS = int(TAKEN_FOR.total_seconds() * 1000)


@dataclass(frozen=True)
class Retimed:
    """An approval with another time or another person on it, and what to announce."""

    approval: Approval
    event: Event


def extend(approval: Approval, reviewer: Reviewer, *, now_ms: int) -> Retimed | Refusal:
    """Add half of the original time, up to `LONGEST` times of it in total.

    Args:
        approval: the record as it stands.
        reviewer: who asks for it; has to be one who may decide a waiting call.
        now_ms: the store's clock.
    """
    refusal = _refusal(approval, reviewer, now_ms)
    if refusal is not None:
        return refusal
    until_ms = min(approval.expires_at_ms + approval.ttl_ms // 2, latest_ms(approval))
    if until_ms <= approval.expires_at_ms:
        return Forbidden(
            reason="This has got all the time it can get. Please decide it, or let "
            "it expire; the agent can ask again."
        )
    longer = approval.with_(expires_at_ms=until_ms, rev=approval.rev + 1)
    return Retimed(longer, _event(longer, reviewer, EventName.APPROVAL_EXTENDED))


def hastened(approval: Approval, *, ttl_ms: int, now_ms: int) -> Approval:
    """Return an approval that waits from now on as a stricter tier lets it: no longer.

    The deadline is never moved back, nor is the latest one that it can be given.
    """
    return approval.with_(
        expires_at_ms=min(approval.expires_at_ms, now_ms + ttl_ms),
        latest_at_ms=min(latest_ms(approval), now_ms + LONGEST * ttl_ms),
    )


def is_hastened(approval: Approval, *, ttl_ms: int, now_ms: int) -> bool:
    """Say whether it was given no more time than this already, by an earlier raise."""
    return 0 < approval.latest_at_ms <= now_ms + LONGEST * ttl_ms


def take(approval: Approval, reviewer: Reviewer, *, now_ms: int) -> Retimed | Refusal:
    """Say that somebody is on it, for `TAKEN_FOR`; a later one takes it over.

    Arguments are those of `extend`.
    """
    refusal = _refusal(approval, reviewer, now_ms)
    if refusal is not None:
        return refusal
    taken = Taken(by=reviewer.person, until_ms=now_ms + _TAKEN_MS)
    minded = approval.with_(taken=taken, rev=approval.rev + 1)
    return Retimed(minded, _event(minded, reviewer, EventName.APPROVAL_TAKEN))


def latest_ms(approval: Approval) -> int:
    """Return the latest moment to which an approval can be extended."""
    first_ms = approval.created_at_ms + LONGEST * approval.ttl_ms
    return min(first_ms, approval.latest_at_ms or first_ms)


def end_ms(approval: Approval, *, ttl_ms: int) -> int:
    """Return when an approval would end that had been opened for this time.

    What people added to its own time is added here too, within the same bound.
    """
    own_ms = approval.created_at_ms + approval.ttl_ms
    added_ms = max(0, approval.expires_at_ms - own_ms)
    return approval.created_at_ms + min(ttl_ms + added_ms, LONGEST * ttl_ms)


def is_extendable(approval: Approval, *, now_ms: int) -> bool:
    """Say whether somebody could still give an approval more time."""
    is_open = approval.state is ApprovalState.OPEN and now_ms < approval.expires_at_ms
    return is_open and approval.expires_at_ms < latest_ms(approval)


def is_pressing(approval: Approval, *, now_ms: int) -> bool:
    """Say whether it is time to offer more: people were called, or a fifth is left."""
    left_ms = approval.expires_at_ms - now_ms
    was_called = approval.reminded_at_ms or approval.escalated_at_ms
    return bool(was_called) or left_ms <= approval.ttl_ms // _HINT_SHARE


def timers(before: Approval, after: Approval) -> list[tuple[str, int]]:
    """Return the timers that follow from a change: kind, and Unix milliseconds.

    Another end is followed by another reminder, as long before it as the first one
    was before its own. Others who were not called yet are called as long before it,
    too. What would be in the past happens at once.
    """
    found: list[tuple[str, int]] = []
    if after.taken is not None and after.taken != before.taken:
        found.append(("release", after.taken.until_ms))
    added_ms = after.expires_at_ms - after.created_at_ms - after.ttl_ms
    if after.expires_at_ms != before.expires_at_ms:
        opened_ms, waiting = after.created_at_ms + added_ms, after.waiting
        if waiting.remind_at_ms:
            found.append(("remind", opened_ms + waiting.remind_at_ms))
        if waiting.escalate_at_ms and not after.escalated_at_ms:
            found.append(("escalate", opened_ms + waiting.escalate_at_ms))
    return found


def _refusal(approval: Approval, reviewer: Reviewer, now_ms: int) -> Refusal | None:
    waiting = [item for item in approval.items if item.is_pending]
    if not waiting:
        last = approval.items[-1]
        return Stale.of(last)
    if now_ms >= approval.expires_at_ms:
        return Expired(expires_at_ms=approval.expires_at_ms)
    objections = [
        quorum.objection(reviewer, item.demand, approval.principals, item.principals)
        for item in waiting
    ]
    return None if None in objections else _forbidden(objections)


def _forbidden(objections: Sequence[str | None]) -> Forbidden:
    return Forbidden(reason=next(each for each in objections if each))


def _event(approval: Approval, reviewer: Reviewer, name: EventName) -> Event:
    roles = [role for item in approval.items for role in item.demand.roles]
    return Event(
        name=name,
        tenant=approval.tenant,
        agent=approval.agent,
        thread=approval.thread,
        outer=approval.outer,
        approval=approval.id,
        version=approval.version,
        policy_digest=approval.policy_digest,
        actor=f"{reviewer.team}/{reviewer.user}",
        roles=tuple(dict.fromkeys(quorum.roles_of(reviewer, roles))),
        channel=approval.channel,
        data={"expires_at_ms": str(approval.expires_at_ms)},
    )
