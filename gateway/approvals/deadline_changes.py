"""Extend an approval's deadline, mark who handles it, and apply due timers.

These changes decide nothing, and others can still decide.
"""

from __future__ import annotations

from datetime import timedelta
from typing import assert_never

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import (
    Expired,
    Forbidden,
    Refusal,
    Reviewer,
    Stale,
    Unknown,
)
from keyturn.gateway.approvals.events import (
    ENDS_DIFFER,
    Event,
    EventName,
    approval_event,
)
from keyturn.gateway.approvals.record import Acknowledgement, Approval, Item
from keyturn.gateway.approvals.timing import (
    DOUBT_THEN_MS,
    TimerKind,
    end_of,
    ends,
    is_late,
    is_over,
    latest_ms,
    next_end_ms,
    with_end,
)
from keyturn.gateway.protocol.records import ItemState

TAKEN_FOR = timedelta(minutes=10)
"""Duration of "I'm on it"."""

_TAKEN_MS = int(TAKEN_FOR.total_seconds() * 1000)
_FIRED = {
    TimerKind.REMIND: EventName.APPROVAL_REMINDED,
    TimerKind.ESCALATE: EventName.APPROVAL_ESCALATED,
    TimerKind.RELEASE: EventName.APPROVAL_RELEASED,
    TimerKind.DOUBT: EventName.APPROVAL_STILL_IN_DOUBT,
}


def extend(approval: Approval, reviewer: Reviewer, now_ms: int) -> Change | Refusal:
    """Add half of the original time, up to `LONGEST` times of it in total.

    Args:
        approval: the current record.
        reviewer: the person asking; must be allowed to decide a waiting call.
        now_ms: the store's clock.
    """
    refused = refusal(approval, reviewer, now_ms)
    if refused is not None:
        return refused
    # Half of the original time and not of the rest, which would shrink with each click.
    added_ms = approval.ttl_ms // 2
    longer = [
        item.with_(expires_at_ms=until_ms)
        for item in approval.items
        if item.is_pending
        and not is_late(approval, item, now_ms)
        # A call at its limit keeps its end.
        and (until_ms := _extended_ms(approval, item, added_ms))
    ]
    if not longer:
        return Forbidden(
            reason=(
                "No more time can be added. Please decide, or let it expire; the "
                "agent can ask again."
            )
        )
    after = with_end(approval, *longer).with_(rev=approval.rev + 1)
    return _change(approval, after, reviewer, EventName.APPROVAL_EXTENDED, now_ms)


def acknowledge(
    approval: Approval, reviewer: Reviewer, now_ms: int
) -> Change | Refusal:
    """Mark a person as handling an approval, for `TAKEN_FOR`; the latest one counts.

    Arguments are those of `extend`.
    """
    refused = refusal(approval, reviewer, now_ms)
    if refused is not None:
        return refused
    acknowledged = Acknowledgement(by=reviewer.person, until_ms=now_ms + _TAKEN_MS)
    marked = approval.with_(acknowledged=acknowledged, rev=approval.rev + 1)
    return _change(approval, marked, reviewer, EventName.APPROVAL_ACKNOWLEDGED, now_ms)


def fire(approval: Approval, kind: TimerKind, now_ms: int) -> Change | None:
    """Return the change by a due timer; None if the approval does not wait any more.

    It reminds people, escalates, asks about a doubt again, or ends "I'm on it".
    """
    states = {item.state for item in approval.items}
    called = approval.waiting.escalate_to if kind is TimerKind.ESCALATE else ()
    event = approval_event(approval, _FIRED[kind], reason=", ".join(called))
    after = approval.with_(rev=approval.rev + 1)
    if kind is TimerKind.DOUBT:
        if ItemState.IN_DOUBT not in states:
            return None
        # Set the timer again in the same step: a crash right after it loses no
        # reminder.
        again = (kind.value, now_ms + DOUBT_THEN_MS)
        return Change(after, (event,), fires=kind, timers=(again,))
    # A reminder about a call that has ended, or ends with the next sweep, would only
    # confuse.
    if ItemState.PENDING not in states or is_over(approval, now_ms):
        return None
    match kind:
        case TimerKind.RELEASE:
            after = after.with_(acknowledged=None)
        case TimerKind.REMIND:
            after = after.with_(reminded_at_ms=now_ms)
        case TimerKind.ESCALATE:
            after = after.with_(escalated_at_ms=now_ms)
        case _:
            assert_never(kind)
    return Change(after, (event,), fires=kind)


def refusal(
    approval: Approval, reviewer: Reviewer, now_ms: int, *, call: int | None = None
) -> Refusal | None:
    """Return why this person may not act on the waiting calls; None: they may.

    They must be allowed to decide this call, or any waiting call if ``call`` is None.
    """
    items = approval.items if call is None else approval.items[call : call + 1]
    waiting = [item for item in items if item.is_pending]
    if not waiting:
        return Stale.of(items[-1]) if items else Unknown()
    waiting = [item for item in waiting if not is_late(approval, item, now_ms)]
    if not waiting:
        return Expired(expires_at_ms=end_of(approval, items[-1]))
    reasons = [
        quorum.ineligible_reason(
            reviewer, item.requirement, approval.principals, item.principals
        )
        for item in waiting
    ]
    # A reviewer of one call may extend the time of the whole card.
    if None in reasons:
        return None
    return Forbidden(reason=next(each for each in reasons if each))


def _extended_ms(approval: Approval, item: Item, added_ms: int) -> int:
    """Return the end of a call with this much more time; 0: it can get no more."""
    end_ms = end_of(approval, item)
    until_ms = min(end_ms + added_ms, latest_ms(approval, item))
    return until_ms if until_ms > end_ms else 0


def _change(
    before: Approval, after: Approval, reviewer: Reviewer, name: EventName, now_ms: int
) -> Change:
    roles = [role for item in after.items for role in item.requirement.roles]
    event: Event = approval_event(after, name).with_(
        actor=f"{reviewer.team}/{reviewer.user}",
        roles=tuple(dict.fromkeys(quorum.roles_of(reviewer, roles))),
        data={
            "expires_at_ms": str(after.expires_at_ms),
            "gesture": reviewer.gesture.value,
            **({ENDS_DIFFER: "yes"} if len(ends(after)) > 1 else {}),
        },
    )
    # Only before the end: the sweep may expire the card between the read and this
    # write.
    return Change(after, (event,), before_ms=next_end_ms(before, now_ms))
