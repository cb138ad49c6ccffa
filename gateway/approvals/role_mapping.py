"""Map a function over every role that an approval names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Role
from keyturn.gateway.protocol.tiers import join

ChangeRole = Callable[[Item, Role], Role]
"""Returns a role, as it is asked about an item, with another ``asking``."""


def with_roles(approval: Approval, change: ChangeRole) -> Approval:
    """Return an approval with changed roles, those that are called later included.

    These are changed as for the call of the highest tier that waits.
    """
    items = tuple(
        item.with_(requirement=item.requirement.with_roles(partial(change, item)))
        for item in approval.items
    )
    waiting = [item for item in items if item.is_pending] or [*items]
    top = join(*(item.tier for item in waiting))
    highest = next(item for item in waiting if item.tier is top)
    roles = tuple(change(highest, role) for role in approval.waiting.roles)
    return approval.with_(items=items, waiting=approval.waiting.with_(roles=roles))
