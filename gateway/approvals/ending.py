"""End or time out items: expire, lapse, supersede, withdraw, doubt, quarantine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from keyturn.gateway.approvals import standing
from keyturn.gateway.approvals.changes import (
    Change,
    by_gateway,
    ended,
    reached,
    reason_of_end,
)
from keyturn.gateway.approvals.events import BY_GATEWAY, UNUSED, Event, EventName
from keyturn.gateway.approvals.executing import report_asked_again
from keyturn.gateway.approvals.lifecycle import ENDS, Transition, advance
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.timing import is_late
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import AskedAgain

# Change records after the store or the checkpoints were lost or restored.
#
# The store and the checkpoints are separate, and a copy of one may be older than the
# other. Such a record may miss events: a call that it shows as authorized may have run
# since. No change here lets a call run: it ends the call, or asks people.

THREAD_LOST = "The saved state of the agent's conversation is gone."
RESTORED = (
    "This record was restored from an older copy. What was decided about this call "
    "since then, and whether it ran, is not known. Check before you decide."
)


def end_with_thread(approval: Approval, item: Item, now_ms: int) -> Change | None:
    """End a call whose thread is gone; None when it is under way or has ended.

    A started call is left to the process that runs it, or else to people; an overdue
    call is left to the sweeper.
    """
    transition = ENDS.get(item.state)
    # The sweep ends it as expired, and the card shows that.
    if transition is None or is_late(approval, item, now_ms):
        return None
    return ended(approval, item, transition, THREAD_LOST, now_ms)


def doubt_restored(approval: Approval, item: Item, now_ms: int) -> Change | None:
    """Return the change to a call in a record that is older than its events.

    An authorized call may have run, so people reconcile it. A waiting call keeps
    waiting, with a warning and without its earlier votes. It gets a new version, which
    invalidates clicks on a card without the warning. None for a call that has ended,
    and for a started one: it will become in doubt by itself.
    """
    # Its uses since then are not known, so it covers no further call.
    if item.is_standing:
        return standing.end(approval, standing.RESTORED, now_ms)
    why = reason_of_end(item, RESTORED, now_ms).with_(is_restored=True)
    if item.state is ItemState.AUTHORIZED and item.handed_to:
        return end_restored(approval, item, now_ms)
    if item.state is ItemState.AUTHORIZED:
        return by_gateway(approval, item.moved(Transition.DOUBT, now_ms, revoked=why))
    # Idempotent: without the second test each repair would drop the newer votes.
    if not item.is_pending or item.is_restored:
        return None
    if is_late(approval, item, now_ms):
        return by_gateway(approval, item.moved(Transition.EXPIRE, now_ms, revoked=why))
    waiting = item.with_(revoked=why, votes=())
    return by_gateway(approval, waiting, version=approval.version + 1)


def end_restored(approval: Approval, item: Item, now_ms: int) -> Change:
    """End a call that another program runs, in a record older than its events.

    What the program did is never known here, so no person can reconcile it.
    """
    why = reason_of_end(item, RESTORED, now_ms).with_(is_restored=True, is_final=True)
    ended = item.with_(owner="", claimed_until_ms=0)
    return by_gateway(approval, ended.moved(Transition.LAPSE, now_ms, revoked=why))


WORKSPACE_GONE = (
    "The Slack app was removed from the workspace, and nobody can decide there any "
    "more."
)
"""Reason for the end of a call that waits in a workspace without the app."""


def end_without_reviewers(approval: Approval, now_ms: int) -> Change | None:
    """End the calls that wait for people, who cannot decide any more; None for none.

    Calls that people approved keep their approval. A standing approval ends, because
    nobody could revoke it.
    """
    if approval.is_standing:
        return standing.end(approval, WORKSPACE_GONE, now_ms)
    # The sweep ends an overdue call as expired, and the card shows that.
    waiting = [
        item.moved(
            Transition.WITHDRAW,
            now_ms,
            revoked=reason_of_end(item, WORKSPACE_GONE, now_ms).with_(is_final=True),
        )
        for item in approval.items
        if item.is_pending and not is_late(approval, item, now_ms)
    ]
    if not waiting:
        return None
    change = reached(approval, *waiting)
    events = (
        one.with_(actor=BY_GATEWAY, reason=WORKSPACE_GONE) for one in change.events
    )
    return replace(change, events=tuple(events), resumes=True)


NO_LONGER_ASKED = "It was authorized, and its agent no longer asks for it."
"""Reason for the withdrawal of an authorized call."""

LEFT = "Whether its program took the decision is not known: the hand-over broke off."
"""Reason for the end of a hand-over without a report."""

MOVED_ON = "A newer message came."
"""Reason for the early lapse of an authorized call."""


def end_overdue(approval: Approval, now_ms: int) -> Change | None:
    """End the overdue items of an approval; None if there are none.

    Pending items expire, unused authorizations and broken hand-overs lapse, and
    executions without a heartbeat become in doubt. An execution of an idempotent tool
    is left to the worker that resumes the thread: it runs the call again.
    """
    late = [
        # A silent owner does not renew its claim any more.
        _left(item, now_ms).moved(transition, now_ms, claimed_until_ms=0)
        for item in approval.items
        if (transition := _due(item, approval, now_ms))
    ]
    if late:
        change = reached(approval, *late)
        told = map(_broken_off, change.events, late)
        return replace(change, events=tuple(told), resumes=True)
    for item in approval.items:
        if item.is_to_be_asked_again and item.lapses_at_ms <= now_ms:
            silent = AskedAgain(item_id=item.id, ok=False)
            asked = report_asked_again(approval, item, silent, now_ms=now_ms)
            return asked if isinstance(asked, Change) else None
    return None


def end_waiting(
    approval: Approval,
    transition: Literal[Transition.SUPERSEDE, Transition.WITHDRAW],
    now_ms: int,
    *,
    ends: Callable[[Item], bool] = lambda _: True,
) -> Change | None:
    """End waiting items that are not needed any more; None if there are none.

    Args:
        approval: the current record.
        transition: SUPERSEDE when the thread moved on, WITHDRAW when the agent dropped
            the call. An unused authorization lapses when the thread moved on.
        now_ms: the store's clock.
        ends: selects the waiting items to end.
    """
    # Executing items are not included: a started call is never cancelled. Of a new
    # message it is not known whether it came before or after a broken hand-over.
    is_dropped = transition is Transition.WITHDRAW
    waiting = [
        item
        for item in approval.items
        if (item.may_run or (is_dropped and item.is_left_at(now_ms))) and ends(item)
    ]
    if not waiting:
        return None
    change = reached(approval, *(_ended(item, transition, now_ms) for item in waiting))
    return replace(change, events=tuple(map(_with_reason, change.events, waiting)))


def _ended(
    item: Item,
    transition: Literal[Transition.SUPERSEDE, Transition.WITHDRAW],
    now_ms: int,
) -> Item:
    if item.is_pending:
        return item.moved(transition, now_ms)
    if item.state is ItemState.HANDING_OVER:
        left = _left(item, now_ms).with_(decision=None, claimed_until_ms=0)
        return left.moved(transition, now_ms)
    is_superseded = transition is Transition.SUPERSEDE
    reason = MOVED_ON if is_superseded else NO_LONGER_ASKED
    why = reason_of_end(item, reason, now_ms).with_(is_final=True)
    if is_superseded:
        return item.moved(Transition.LAPSE, now_ms, revoked=why)
    # Keep the votes, but no decision: it would look like one of the person who
    # withdrew.
    return item.moved(transition, now_ms, decision=None, revoked=why)


def _left(item: Item, now_ms: int) -> Item:
    """Return an item with the reason for the end of its hand-over, if it has one."""
    if item.state is not ItemState.HANDING_OVER:
        return item
    why = reason_of_end(item, LEFT, now_ms).with_(is_final=True)
    return item.with_(owner="", revoked=why)


def _broken_off(event: Event, after: Item) -> Event:
    is_left = after.revoked is not None and after.revoked.reason == LEFT
    return event.with_(reason=LEFT) if is_left else event


def _with_reason(event: Event, before: Item) -> Event:
    if before.is_pending or event.name is not EventName.ITEM_WITHDRAWN:
        return event
    reason = NO_LONGER_ASKED if before.may_run else LEFT
    return event.with_(reason=reason, data={**event.data, UNUSED: "true"})


def quarantined_states(states: Mapping[int, ItemState]) -> dict[int, ItemState]:
    """Return the next states of a corrupt record: its calls can no longer run."""
    ends = {**ENDS, ItemState.HANDING_OVER: Transition.LAPSE}
    return {
        index: advance(state, ends[state])
        for index, state in states.items()
        if state in ends
    }


def _due(item: Item, approval: Approval, now_ms: int) -> Transition | None:
    match item.state:
        case ItemState.PENDING if is_late(approval, item, now_ms):
            return Transition.EXPIRE
        case ItemState.AUTHORIZED if item.lapses_at_ms <= now_ms:
            return Transition.LAPSE
        case ItemState.EXECUTING if now_ms >= item.claimed_until_ms:
            # The worker that resumes the thread claims it again under the same key.
            return None if item.idempotent else Transition.DOUBT
        case ItemState.HANDING_OVER if (
            item.is_left_at(now_ms) and item.lapses_at_ms <= now_ms
        ):
            return Transition.LAPSE
        case _:
            return None
