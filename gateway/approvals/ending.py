"""End or time out items: expire, lapse, supersede, withdraw, doubt, quarantine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from keyturn.gateway.approvals import standing
from keyturn.gateway.approvals.changes import Change, by_gateway, following
from keyturn.gateway.approvals.events import UNUSED, Event, approval_event, named_after
from keyturn.gateway.approvals.executing import as_in_doubt
from keyturn.gateway.approvals.lifecycle import Transition, advance
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Revocation
from keyturn.gateway.approvals.timing import is_late
from keyturn.gateway.protocol.records import ItemState

# Change records after the store or the checkpoints were lost or restored.
#
# The store and the checkpoints are two places, and a copy of one may be older than the
# other. Then a record says less than what happened: a call that it calls authorized may
# have run since. Nothing here lets a call run: each change ends it, or asks people.

THREAD_LOST = "The saved state of the agent's conversation is gone."
RESTORED = (
    "This record was restored from an older copy. What was decided about this call "
    "since then, and whether it ran, is not known. Check before you decide."
)

_ENDS = {ItemState.PENDING: Transition.WITHDRAW, ItemState.AUTHORIZED: Transition.LAPSE}


def end_with_thread(approval: Approval, item: Item, now_ms: int) -> Change | None:
    """End a call whose thread is gone; None when it is under way or has ended.

    A started call is left to the process that runs it, or to people when none does; an
    overdue call, to the sweeper.
    """
    transition = _ENDS.get(item.state)
    # The sweep ends it as expired, which is what people read on the card.
    if transition is None or is_late(approval, item, now_ms):
        return None
    why = reason_of_end(item, THREAD_LOST, now_ms).with_(is_final=True)
    return by_gateway(approval, item.moved(transition, now_ms, revoked=why))


def doubt_restored(approval: Approval, item: Item, now_ms: int) -> Change | None:
    """Return the change to a call in a record that is older than what happened.

    An authorized one may have run, so people reconcile it. One that waits
    goes on waiting with a warning, without the votes of those who did not see it, and
    with a version of its own, so that no click on a card without it counts. None for a
    call that has ended, and for one that was started: it will be in doubt by itself.
    """
    # Its uses since then are not known, so it covers nothing more.
    if item.is_standing:
        return standing.end(approval, standing.RESTORED, now_ms)
    why = reason_of_end(item, RESTORED, now_ms).with_(is_restored=True)
    if item.state is ItemState.AUTHORIZED:
        return by_gateway(approval, item.moved(Transition.DOUBT, now_ms, revoked=why))
    # Twice is once: without the second test each repair would drop the votes given
    # since.
    if not item.is_pending or item.is_restored:
        return None
    if is_late(approval, item, now_ms):
        return by_gateway(approval, item.moved(Transition.EXPIRE, now_ms, revoked=why))
    waiting = item.with_(revoked=why, votes=())
    return by_gateway(approval, waiting, version=approval.version + 1)


def reason_of_end(item: Item, reason: str, now_ms: int) -> Revocation:
    """Return the note about what the gateway itself did to a call."""
    # Not counted as one more: the policy revoked nothing here.
    times = item.revoked.times if item.revoked else 0
    return Revocation(
        reason=reason, at_ms=now_ms, times=times, is_restored=item.is_restored
    )


NO_LONGER_ASKED = "It was authorized, and its agent no longer asks for it."
"""Why an authorized call is withdrawn."""

MOVED_ON = "A newer message came."
"""Why an authorized call lapses before its time."""

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
            the call. An unused authorization lapses when the thread moved on.
        now_ms: the store's clock.
        ends: which items end, of those that wait.
    """
    # What executes is not in it: nothing that was started is called off.
    open_states = {ItemState.PENDING, ItemState.AUTHORIZED}
    waiting = [it for it in approval.items if it.state in open_states and ends(it)]
    if not waiting:
        return None
    ended = [_ended(item, transition, now_ms) for item in waiting]
    return Change(
        following(approval, *ended), tuple(_end_event(approval, one) for one in ended)
    )


def _ended(
    item: Item,
    transition: Literal[Transition.SUPERSEDE, Transition.WITHDRAW],
    now_ms: int,
) -> Item:
    if item.is_pending:
        return item.moved(transition, now_ms)
    is_superseded = transition is Transition.SUPERSEDE
    reason = MOVED_ON if is_superseded else NO_LONGER_ASKED
    why = reason_of_end(item, reason, now_ms).with_(is_final=True)
    if is_superseded:
        return item.moved(Transition.LAPSE, now_ms, revoked=why)
    # The votes stay; a decision would read as that of the person who withdrew it.
    return item.moved(transition, now_ms, decision=None, revoked=why)


def _end_event(approval: Approval, ended: Item) -> Event:
    event = approval_event(approval, named_after(ended.state), ended)
    if ended.revoked is None or ended.revoked.reason != NO_LONGER_ASKED:
        return event
    return event.with_(reason=NO_LONGER_ASKED, data={**event.data, UNUSED: "true"})


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
