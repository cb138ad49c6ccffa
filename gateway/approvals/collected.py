"""Show several approvals as one: the record behind a collected card.

A collected card shows calls of separate approvals, each with its own id, hash, deadline
and thread. The record made here is never stored, and decisions do not apply to it. Its
digest binds a click to exactly these calls in this order, and each call is decided in
its own approval.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyturn.gateway.approvals.record import Approval, approval_of

_LEFT = 1_000_000
"""More than any version or rev of an approval."""


def collected(card: str, members: Sequence[Approval], *, left: int = 0) -> Approval:
    """Return the record of a collected card.

    Args:
        card: its id.
        members: the approvals on the card, in order, each with one call.
        left: number of approvals that left it for cards of their own.
    """
    first = members[0]
    people = [person for one in members for person in one.principals]
    return first.with_(
        id=card,
        # Both only rise, even when a member leaves with its numbers: an older version
        # of the card is never taken for a newer one.
        version=1 + sum(one.version - 1 for one in members) + left * _LEFT,
        rev=sum(one.rev for one in members) + left * _LEFT,
        created_at_ms=min(one.created_at_ms for one in members),
        expires_at_ms=_expires_at_ms(members),
        reminded_at_ms=max(one.reminded_at_ms for one in members),
        escalated_at_ms=max(one.escalated_at_ms for one in members),
        # The count before the first call of the card.
        recent_requests=first.recent_requests,
        principals=tuple(dict.fromkeys(people)),
        # These belong to one thread; the card covers several.
        acknowledged=None,
        origin=_same(members, "origin"),
        says="",
        remarks=(),
        inquiries=(),
        # An item keeps its id, which contains its approval's id; only its index
        # changes.
        items=tuple(
            one.items[0].with_(
                index=place,
                expires_at_ms=one.items[0].expires_at_ms or one.expires_at_ms,
            )
            for place, one in enumerate(members)
        ),
    )


def is_collected(approval: Approval) -> bool:
    """Return True if this is the record of a collected card."""
    return approval_of(approval.items[0].id)[0] != approval.id


def _expires_at_ms(members: Sequence[Approval]) -> int:
    waiting = [one for one in members if one.items[0].is_pending]
    return min(one.expires_at_ms for one in waiting or members)


def _same(members: Sequence[Approval], name: str) -> object:
    first, *others = (getattr(one, name) for one in members)
    return first if all(one == first for one in others) else None
