"""Change records after the store or the checkpoints were lost or restored.

The store and the checkpoints are two places, and a copy of one may be older than the
other. Then a record says less than what happened: a call that it calls authorized may
have run since. Nothing here lets a call run: each change ends it, or asks people.
"""

from __future__ import annotations

from twokey.gateway.approvals import standing
from twokey.gateway.approvals.authorization import Revocation
from twokey.gateway.approvals.changes import Change, by_gateway
from twokey.gateway.approvals.lifecycle import Transition
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.timing import is_late
from twokey.gateway.protocol.states import ItemState

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
    why = _why(item, THREAD_LOST, now_ms).with_(is_final=True)
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
    why = _why(item, RESTORED, now_ms).with_(is_restored=True)
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


def _why(item: Item, reason: str, now_ms: int) -> Revocation:
    # Not counted as one more: the policy revoked nothing here.
    times = item.revoked.times if item.revoked else 0
    return Revocation(
        reason=reason, at_ms=now_ms, times=times, is_restored=item.is_restored
    )
