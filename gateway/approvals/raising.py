"""Raise a waiting call's tier and requirement to those of the current policy."""

from __future__ import annotations

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.requirement import Floor
from keyturn.gateway.protocol.records import join


def raised_item(item: Item, policy_now: PolicyDecision | None) -> Item:
    """Return an item that needs both its own and the current policy's requirement."""
    if policy_now is None:
        return item
    tier = join(item.tier, policy_now.tier)
    # dict.fromkeys and not a set: a card shows each reason once, in a fixed order.
    reasons = tuple(dict.fromkeys((*item.reasons, *policy_now.reasons)))
    requirement = quorum.stricter(item.requirement, policy_now.requirement)
    # Use the effect of the current policy, like later calls.
    effect = policy_now.effect or item.effect
    is_same = tier is item.tier and requirement is item.requirement
    if is_same and (reasons, effect) == (item.reasons, item.effect):
        return item
    return item.with_(
        tier=tier, reasons=reasons, requirement=requirement, effect=effect
    )


def edit_asks_more(item: Item, raised: Item, policy_now: PolicyDecision | None) -> bool:
    """Return True if an edit makes its call need more than it needed before.

    The editor then leaves the decision to others. Arguments of a lower tier add that
    tier's people to those that the call needs anyway. That is not a raise: a person who
    makes a call smaller may vote on it.
    """
    if raised.tier is not item.tier:
        return True
    is_lower = policy_now is not None and policy_now.tier is not raised.tier
    # `stricter` keeps the people of the higher tier and adds those of the lower one.
    return not is_lower and quorum.asks_more(raised.requirement, item.requirement)


def first_of(item: Item, policy_now: PolicyDecision | None) -> Item:
    """Return a waiting item before the raise by this policy, to evaluate it anew.

    The cause of the raise may be over, such as another call in the same window.
    """
    first = item.floor
    # After a decision the raise stays: people decided about the raised call.
    if first is None or policy_now is None or not item.is_pending:
        return item
    if first.policy_digest != policy_now.policy_digest:
        return item.with_(floor=None)  # another policy lowers nothing
    return item.with_(
        tier=first.tier,
        reasons=first.reasons,
        requirement=first.requirement,
        floor=None,
    )


def shown_item(item: Item, policy_now: PolicyDecision | None) -> Item:
    """Return a waiting item as it is evaluated now."""
    first = first_of(item, policy_now)
    shown = keeping_floor(first, raised_item(first, policy_now), policy_now)
    if policy_now is None:
        return shown
    return shown.with_(past=policy_now.past, is_frozen=bool(policy_now.stopped))


def keeping_floor(first: Item, raised: Item, policy_now: PolicyDecision | None) -> Item:
    """Return the raised item; if it needs more now, keep the old need as floor."""
    is_same = (raised.tier, raised.requirement) == (first.tier, first.requirement)
    if policy_now is None or is_same:
        return raised
    floor = Floor(
        tier=first.tier,
        reasons=first.reasons,
        requirement=first.requirement,
        policy_digest=policy_now.policy_digest,
    )
    return raised.with_(floor=floor)
