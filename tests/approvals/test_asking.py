"""Whom a card asks is changed in every role of an approval, those called later too."""

from __future__ import annotations

from keyturn.gateway.approvals.record import Approval, Item, Waiting
from keyturn.gateway.approvals.requirement import Asking, Role
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.approvals.builders import SENIOR, TWO, an_approval, an_item


def asks_of(found: Approval) -> list[tuple[str, ...]]:
    """Return whom the roles of each call ask, and whom those that are called later."""
    of_items = [
        role.asked.users for item in found.items for role in item.requirement.roles
    ]
    return [*of_items, *(role.asked.users for role in found.waiting.roles)]


def by_tier(item: Item, role: Role) -> Role:
    return role.with_(asking=Asking(users=(f"{role.name} at {item.tier.value}",)))


def test_roles_are_asked_as_for_their_call_and_later_ones_as_for_the_highest() -> None:
    items = (an_item(0), an_item(1, requirement=TWO, tier=Tier.ESCALATE))
    waiting = Waiting(escalate_at_ms=1, roles=(SENIOR,))

    found = an_approval(*items).with_(waiting=waiting).with_roles(by_tier)

    assert asks_of(found) == [
        ("support at approve",),
        ("support at escalate",),
        ("senior at escalate",),
        ("senior at escalate",),
    ]


def test_a_call_that_is_decided_does_not_say_how_later_roles_are_asked() -> None:
    decided = an_item(1, tier=Tier.ESCALATE).with_(state=ItemState.REJECTED)
    waiting = Waiting(escalate_at_ms=1, roles=(SENIOR,))
    found = an_approval(an_item(0), decided).with_(waiting=waiting)

    assert asks_of(found.with_roles(by_tier))[-1] == ("senior at approve",)

    ended = found.with_(items=(decided.with_(index=0),))
    assert asks_of(ended.with_roles(by_tier))[-1] == ("senior at escalate",)
