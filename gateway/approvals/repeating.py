"""Hold back an approval of a repeated call until its reviewer saw the earlier one.

A card shows how earlier calls with the same effect ended. If such a call was approved
after the card was opened, the reviewer may not have seen that. For tools whose effect
the policy names (``same_by``), their click then approves nothing. It makes a new
version of the approval, which invalidates earlier buttons and votes, and whose card
shows the earlier call. The next click on that card counts.
"""

from __future__ import annotations

from keyturn.gateway.approvals.changes import Change, DecisionContext
from keyturn.gateway.approvals.decisions import Repeated
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.precedents import (
    KINDS,
    MOST_REASON,
    Past,
    Precedent,
    PrecedentKind,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.strict_json import JsonObject

ARGS_TAG = "keyturn/v1/precedent"


def args_hash(tool: str, args: JsonObject) -> str:
    """Return a hash that is equal for calls of one tool with equal arguments."""
    return _hash_of(tool, digest.canonical(args).decode())


def _hash_of(tool: str, args: str) -> str:
    # The canonical text of a list of both.
    document = f"[{digest.canonical(tool).decode()},{args}]"
    found = digest.tagged_hash(ARGS_TAG, document.encode())
    return found.removeprefix("sha256:")[:32]


def precedent_of(approval: Approval, item: Item) -> Precedent | None:
    """Return an item as a precedent for later calls with its effect, or None.

    The store fills in its times.
    """
    if item.state not in KINDS or not item.effect:
        return None
    word, by, reason = item.decision, tuple(vote.by for vote in item.votes_now), ""
    if item.is_pending:
        by = ()
    elif KINDS[item.state] is PrecedentKind.REJECTED and word:
        by, reason = (word.by,), word.text[:MOST_REASON]
    elif item.cover:
        # The policy did not clear it: people did, by the standing approval.
        by = (*item.cover.given_by, *by)
    return Precedent(
        call=item.id,
        state=item.state,
        agent=approval.agent,
        by=by,
        reason=reason,
        # Cut from the document: parsing large arguments would block the event loop.
        args_hash=_hash_of(item.tool, digest.canonical_args(item.action)),
    )


def other_calls(
    approval: Approval, past: Past, kind: PrecedentKind = PrecedentKind.DONE
) -> tuple[Precedent, ...]:
    """Return the precedents of one kind outside of an approval, newest first.

    The calls of one approval are on one card, where reviewers see them all.
    """
    # A collected card has calls of several approvals.
    shown = {item.id for item in approval.items}
    found = [one for one in past.of_kind(kind) if one.call not in shown]
    return tuple(one for one in found if one.approval != approval.id)


def doubled(approval: Approval) -> list[tuple[Item, ...]]:
    """Return the waiting calls of an approval that have the same effect, in groups."""
    by_effect: dict[str, tuple[Item, ...]] = {}
    for item in approval.items:
        if item.is_pending and item.effect:
            by_effect[item.effect] = (*by_effect.get(item.effect, ()), item)
    return [items for items in by_effect.values() if len(items) > 1]


def unseen(context: DecisionContext, item: Item) -> Precedent | None:
    """Return the newest precedent that a click on this version may not have seen.

    Args:
        context: of the decision.
        item: the call as it would run.
    """
    # Without `same_by` a repetition is no known mistake: the card shows it, and rules
    # may count it.
    if not context.policy_now.past.same_by:
        return None
    found = other_calls(context.approval, context.policy_now.past)
    # The edit makes it another call, and the edit form showed no precedents.
    is_edited = item.action != context.item.action
    seen_ms = max(context.approval.created_at_ms, item.repeats_seen_ms)
    if is_edited and context.item.effect != item.effect:
        seen_ms = 0
    return next((one for one in found if one.since_ms > seen_ms), None)


def show_first(context: DecisionContext, item: Item, precedent: Precedent) -> Change:
    """Return the next version: the item keeps waiting; its card shows the precedent."""
    version = context.approval.version + 1
    # Earlier votes are dropped: their cards did not show the precedent either.
    shown = item.with_(repeats_seen_ms=context.now_ms, votes=())
    approval = context.reopened(shown, version)
    is_edited = item.action != context.item.action
    events = [context.event(shown, EventName.ITEM_EDITED, version)] * is_edited
    event = context.event(shown, EventName.ITEM_REPEATED, version)
    # Name the earlier call by its id alone: an event contains no argument.
    event = event.with_(data=event.data | {"precedent": precedent.call})
    repeated = Repeated(approval=approval, index=item.index, precedent=precedent)
    return context.change(approval, *events, event, waits_on=repeated)
