"""End or time out items: expire, lapse, supersede, withdraw, doubt, quarantine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from twokey.gateway.approvals.changes import Change, following
from twokey.gateway.approvals.events import approval_event, named_after
from twokey.gateway.approvals.executing import as_in_doubt
from twokey.gateway.approvals.lifecycle import Transition, advance
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.timing import is_late
from twokey.gateway.protocol.states import ItemState

_WITHDRAWN = {
    ItemState.PENDING: Transition.WITHDRAW,
    ItemState.AUTHORIZED: Transition.LAPSE,
}


def end_overdue(approval: Approval, now_ms: int) -> Change | None:
    """End what is overdue in an approval; None when nothing is.

    Pending items expire, unused authorizations lapse, and executions whose owner fell
    silent are in doubt. One of an idempotent tool is left to the worker that resumes
    the thread: it runs the call again.
    """
    late = [
        (item, transition)
        for item in approval.items
        if (transition := _due(item, approval, now_ms))
    ]
    if not late:
        return None
    ended = [
        as_in_doubt(item, now_ms)
        if transition is Transition.DOUBT
        else item.moved(transition, now_ms)
        for item, transition in late
    ]
    events = (approval_event(approval, named_after(one.state), one) for one in ended)
    return Change(following(approval, *ended), tuple(events), resumes=True)


def end_waiting(
    approval: Approval,
    transition: Literal[Transition.SUPERSEDE, Transition.WITHDRAW],
    now_ms: int,
    *,
    ends: Callable[[Item], bool] = lambda _: True,
) -> Change | None:
    """End what waits because nobody needs it any more; None when nothing waits.

    Args:
        approval: the record as it stands.
        transition: SUPERSEDE when the thread moved on, WITHDRAW when the agent dropped
            the call. An authorization that is not used lapses either way.
        now_ms: the store's clock.
        ends: which items end, of those that wait.
    """
    # What executes is not in it: nothing that was started is called off.
    transitions = {
        ItemState.PENDING: transition,
        ItemState.AUTHORIZED: Transition.LAPSE,
    }
    waiting = [
        item for item in approval.items if item.state in transitions and ends(item)
    ]
    if not waiting:
        return None
    ended = [item.moved(transitions[item.state], now_ms) for item in waiting]
    events = (approval_event(approval, named_after(one.state), one) for one in ended)
    return Change(following(approval, *ended), tuple(events))


def quarantined_states(states: Mapping[int, ItemState]) -> dict[int, ItemState]:
    """Return the next states of a corrupt record, which nobody can decide or run."""
    return {
        index: advance(state, _WITHDRAWN[state])
        for index, state in states.items()
        if state in _WITHDRAWN
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
        case _:
            return None
