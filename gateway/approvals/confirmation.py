"""Require a second click where an escalated call is approved within seconds.

The policy sets the time (``tiers.escalate.ask_again_within``). An approval that comes
sooner after the call was shown is noted in the audit log and does not count; the next
one by the same person does, soon or late. So a click out of habit costs a second look,
and nobody has to wait. A rejection is never asked again: it starts nothing.
"""

from __future__ import annotations

from twokey.gateway.approvals import timing
from twokey.gateway.approvals.changes import Change, following
from twokey.gateway.approvals.decision_context import DecisionContext, event_of
from twokey.gateway.approvals.decisions import Forbidden, TooSoon
from twokey.gateway.approvals.events import AFTER_MS, EventName
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.tiers import Tier

SECOND_CLICK_MS = 2_000
"""Two clicks nearer to each other are one: a double click, or one sent twice."""

_SAME_CLICK = Forbidden(
    reason="You approved this a moment ago, sooner than the policy accepts at once. "
    "Please read it, then approve it again."
)


def asked_again(context: DecisionContext, item: Item) -> Change | Forbidden | None:
    """Return what comes of an approval that is too soon; None when it counts.

    Args:
        context: of the decision.
        item: as it would run.
    """
    within_ms = context.policy_now.ask_again_ms if context.policy_now else 0
    since_ms = shown_ms(context.approval, item)
    after_ms = max(0, context.now_ms - since_ms)
    if item.tier is not Tier.ESCALATE or after_ms >= within_ms:
        return None
    # The store's clock went back. No approval counts as a second one until it has come
    # to where it was, so nothing could be approved: nobody is asked again meanwhile.
    if context.now_ms < since_ms:
        return None
    first_ms = min(
        (
            one.at_ms
            for one in item.too_soon
            if one.by.is_same(context.reviewer.person)
            and one.action_hash == item.action_hash
            # Of before it came back to people: they see something else now.
            and one.at_ms >= since_ms
        ),
        default=None,
    )
    if first_ms is None:
        return _noted(context, item, after_ms)
    is_same_click = context.now_ms - first_ms < SECOND_CLICK_MS
    return _SAME_CLICK if is_same_click else None


def _noted(context: DecisionContext, item: Item, after_ms: int) -> Change:
    # The item as it was: what the policy of now asks for is not decided by this click.
    before = context.approval.items[item.index]
    vote = context.vote(item, item.requirement.roles)
    noted = before.with_(too_soon=(*before.too_soon, vote))
    approval = following(context.approval, noted)
    event = event_of(context, noted, EventName.ITEM_ASKED_AGAIN, approval.version)
    return Change(
        approval,
        (event.with_(data=event.data | {AFTER_MS: str(after_ms)}),),
        too_soon=TooSoon(approval=approval, index=item.index, after_ms=after_ms),
        before_ms=timing.end_of(context.approval, context.item),
    )


def shown_ms(approval: Approval, item: Item) -> int:
    """Return since when a call can be seen as it would run now."""
    edited_ms = item.edit.at_ms if item.edit else 0
    times = (item.changed_at_ms, item.repeats_seen_ms, edited_ms)
    return max(approval.created_at_ms, *times)
