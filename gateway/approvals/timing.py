"""Compute an approval's deadline, reminder and escalation times."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import ItemState

LONGEST = 2
"""Longest wait of an approval, as a multiple of its original time."""

AUTHORIZATION_LIFETIME = timedelta(hours=24)
"""Default time in which an authorization has to be used."""

PAUSE_MS = 15 * 24 * 60 * 60 * 1000
"""Time of an authorization while a nested call inside its tool waits for people."""

DOUBT_FIRST_MS = 24 * 60 * 60 * 1000
DOUBT_THEN_MS = 7 * DOUBT_FIRST_MS
"""Times of reminders for a call in doubt: after a day, then weekly."""

_HINT_SHARE = 5  # the last fifth of the time

_HAVE_AN_END = frozenset({ItemState.PENDING, ItemState.EXPIRED})
"""States of a call that has an expiry to show, in the future or the past."""


class TimerKind(StrEnum):
    """Effect of a timer."""

    REMIND = "remind"
    ESCALATE = "escalate"
    RELEASE = "release"
    DOUBT = "doubt"
    CALLER = "caller"


def authorization_ms(*ages: int) -> int:
    """Return the time to use an authorization: the shortest of these.

    0 is an age that is not set.
    """
    longest = int(AUTHORIZATION_LIFETIME.total_seconds() * 1000)
    # min over the ages that are set: 0 would otherwise end an authorization at once.
    return min((age for age in ages if age), default=longest)


def end_of(approval: Approval, item: Item) -> int:
    """Return the end of a call's wait."""
    return item.expires_at_ms or approval.expires_at_ms


def is_late(approval: Approval, item: Item, now_ms: int) -> bool:
    """Return True if a waiting call is past its end and cannot be decided."""
    # `>=`: at the exact end a click is refused, and the sweep ends the call.
    return item.is_pending and now_ms >= end_of(approval, item)


def is_over(approval: Approval, now_ms: int) -> bool:
    """Return True if every waiting call is past its end."""
    waiting = [item for item in approval.items if item.is_pending]
    ends = [end_of(approval, item) for item in waiting] or [approval.expires_at_ms]
    return now_ms >= max(ends)


def ends(approval: Approval) -> dict[int, list[Item]]:
    """Return the waiting calls by their end, earliest first."""
    found: dict[int, list[Item]] = {}
    for item in approval.items:
        if item.is_pending:
            found.setdefault(end_of(approval, item), []).append(item)
    return dict(sorted(found.items()))


def next_end_ms(approval: Approval, now_ms: int) -> int:
    """Return the next end of a waiting call that is not past its end."""
    later = (end_ms for end_ms in ends(approval) if end_ms > now_ms)
    return next(later, approval.expires_at_ms)


def with_end(approval: Approval, *items: Item) -> Approval:
    """Return an approval in which these calls wait until their ``expires_at_ms``.

    No other call gains or loses time.
    """
    changed = {item.index for item in items}
    # The approval's end changes here, so the other calls keep its old value themselves.
    others = [
        item.with_(expires_at_ms=end_of(approval, item))
        for item in approval.items
        if item.index not in changed and item.state in _HAVE_AN_END
    ]
    return with_next_end(approval.replacing(*others, *items))


def with_next_end(approval: Approval) -> Approval:
    """Return an approval that ends with the first of its waiting calls.

    Calls store their end only if they do not all end together.
    """
    if not any(one.expires_at_ms for one in approval.items if one.is_pending):
        return approval
    by_end = ends(approval)
    first_ms, *later = by_end
    together = [] if later else by_end[first_ms]
    shared = (item.with_(expires_at_ms=0) for item in together)
    return approval.replacing(*shared, expires_at_ms=first_ms)


def with_earlier_deadline(
    approval: Approval, item: Item, *, ttl_ms: int, now_ms: int
) -> Approval:
    """Return an approval in which a call waits no longer than its stricter tier.

    Neither the deadline nor the latest possible deadline is ever extended. A deadline
    from an earlier raise to at most this time stays.
    """
    longest_ms = now_ms + LONGEST * ttl_ms
    # A second raise to the same tier must not cut the time again with each edit.
    if 0 < item.latest_at_ms <= longest_ms:
        return approval
    return with_end(
        approval,
        item.with_(
            expires_at_ms=min(end_of(approval, item), now_ms + ttl_ms),
            latest_at_ms=min(latest_ms(approval, item), longest_ms),
        ),
    )


def latest_ms(approval: Approval, item: Item) -> int:
    """Return the latest possible deadline of a call."""
    first_ms = approval.created_at_ms + LONGEST * approval.ttl_ms
    return item.latest_at_ms or first_ms


def end_ms(approval: Approval, item: Item, *, ttl_ms: int) -> int:
    """Return the end of a call if it had been opened with this time.

    Extensions by people are added here too, within the same bound.
    """
    own_ms = approval.created_at_ms + approval.ttl_ms
    # Never negative: a raise may have brought the deadline forward.
    added_ms = max(0, end_of(approval, item) - own_ms)
    return approval.created_at_ms + min(ttl_ms + added_ms, LONGEST * ttl_ms)


def is_extendable(approval: Approval, *, now_ms: int) -> bool:
    """Return True if a waiting call can still get more time."""
    return any(
        item.is_pending
        and not is_late(approval, item, now_ms)
        and end_of(approval, item) < latest_ms(approval, item)
        for item in approval.items
    )


def is_pressing(approval: Approval, *, now_ms: int) -> bool:
    """Return True if more time should be offered: reminded, or a fifth is left."""
    left_ms = approval.expires_at_ms - now_ms
    was_called = approval.reminded_at_ms or approval.escalated_at_ms
    return bool(was_called) or left_ms <= approval.ttl_ms // _HINT_SHARE


def timers(before: Approval, after: Approval, *, now_ms: int) -> list[tuple[str, int]]:
    """Return the timers after a change at ``now_ms``: kind, and time.

    A new end gets a new reminder, with the same lead time as the first one. An
    escalation that has not happened gets its lead time too. Neither comes before the
    same share of the remaining time has passed: the person who changed the end has just
    seen the card.
    """
    found: list[tuple[str, int]] = []
    if after.acknowledged is not None and after.acknowledged != before.acknowledged:
        found.append((TimerKind.RELEASE, after.acknowledged.until_ms))
    added_ms = after.expires_at_ms - after.created_at_ms - after.ttl_ms
    if after.expires_at_ms != before.expires_at_ms:
        left_ms, waiting = after.expires_at_ms - now_ms, after.waiting
        # Escalation happens once; reminders repeat with each new deadline.
        escalate_at_ms = 0 if after.escalated_at_ms else waiting.escalate_at_ms
        for kind, at_ms in (
            (TimerKind.REMIND, waiting.remind_at_ms),
            (TimerKind.ESCALATE, escalate_at_ms),
        ):
            due_ms = after.created_at_ms + added_ms + at_ms
            anew_ms = now_ms + left_ms * at_ms // after.ttl_ms
            if at_ms:
                found.append((kind, max(due_ms, anew_ms)))
    doubtful = [item for item in after.items if item.state is ItemState.IN_DOUBT]
    # Only a new doubt sets the timer: otherwise any change of the card would delay it.
    new = [item for item in doubtful if before.items[item.index].state != item.state]
    if new:
        since_ms = max(item.changed_at_ms for item in new)
        found.append((TimerKind.DOUBT, since_ms + DOUBT_FIRST_MS))
    return found
