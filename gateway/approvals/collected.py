"""Show several approvals as one: the record that a collected card is drawn from.

A collected card shows calls of separate approvals, each of which keeps its id, hash,
deadline and thread. The record made here is never stored, and nothing is decided over
it: its digest binds a click to exactly these calls in this order, and each call is
decided as the approval that it is.
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
        members: the approvals that it shows, in order, each with one call.
        left: how many others left it for cards of their own.
    """
    first = members[0]
    people = [person for one in members for person in one.principals]
    return first.with_(
        id=card,
        # Both only rise, also when a member leaves with its own: an older drawing of
        # the card never passes for a newer one.
        version=1 + sum(one.version - 1 for one in members) + left * _LEFT,
        rev=sum(one.rev for one in members) + left * _LEFT,
        created_at_ms=min(one.created_at_ms for one in members),
        expires_at_ms=_expires_at_ms(members),
        reminded_at_ms=max(one.reminded_at_ms for one in members),
        escalated_at_ms=max(one.escalated_at_ms for one in members),
        # Those on the card do not count, and it is the first of them.
        recent_requests=first.recent_requests,
        principals=tuple(dict.fromkeys(people)),
        # These are of one thread; the card is about several.
        acknowledged=None,
        origin=_same(members, "origin"),
        says="",
        remarks=(),
        inquiries=(),
        # An item keeps its id, which names its approval; only its place is of the card.
        items=tuple(
            one.items[0].with_(
                index=place,
                expires_at_ms=one.items[0].expires_at_ms or one.expires_at_ms,
            )
            for place, one in enumerate(members)
        ),
    )


def is_collected(approval: Approval) -> bool:
    """Return whether this is the record of a collected card."""
    return approval_of(approval.items[0].id)[0] != approval.id


def _expires_at_ms(members: Sequence[Approval]) -> int:
    waiting = [one for one in members if one.items[0].is_pending]
    return min(one.expires_at_ms for one in waiting or members)


def _same(members: Sequence[Approval], name: str) -> object:
    first, *others = (getattr(one, name) for one in members)
    return first if all(one == first for one in others) else None
