"""Name the attempts that a change spends: each is spent once.

An attempt is the right to run a call once. A claim spends it, and so does whatever ends
an authorization: a lapse, a withdrawal, a return to people. Its number follows from the
sealed record, and rises with each claim and each return. A record that is put back as
it was before therefore names an attempt that is spent already.
"""

from __future__ import annotations

from typing import NamedTuple

from keyturn.gateway.approvals.lifecycle import FINAL
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Finding, ItemState

NEVER_AGAIN = 2**31
"""Number of an attempt above those of any record: all attempts are spent by it."""

_ENDED = FINAL | {ItemState.FAILED}


class Attempt(NamedTuple):
    """One right to run a call, or to be covered by a standing approval.

    Attributes:
        approval, item: which call, by id and index; or which use of a standing
            approval, from 1.
        number: rises with each attempt, from 1.
        owner: who claims it; "" where it ends unused.
    """

    approval: str
    item: int
    number: int
    owner: str = ""


def begun_attempt(approval: Approval, item: Item) -> Attempt:
    """Return the attempt that was claimed last."""
    return Attempt(approval.id, item.index, item.fence + _returns(item), item.owner)


def next_attempt(approval: Approval, item: Item) -> Attempt:
    """Return the attempt that is spent next, without an owner."""
    number = item.fence + _returns(item) + 1
    return Attempt(approval.id, item.index, number)


def knowing(item: Item, spent: int) -> Item:
    """Return an item that counts an attempt as begun."""
    return item.with_(fence=max(item.fence, spent - _returns(item)))


def is_asked_again_since(item: Item, at_ms: int) -> bool:
    """Return whether people let a call run again after a moment."""
    is_again = item.finding is Finding.RERUN and item.reconciled_fence == item.fence
    return (
        item.state is ItemState.AUTHORIZED and is_again and item.changed_at_ms > at_ms
    )


def begun_attempts(
    approval: Approval, item: Item, standing: Approval | None
) -> tuple[Attempt, ...]:
    """Return what the latest claim spent: also the use of a standing approval.

    An older record of that has fewer uses, and would cover other calls in their place.
    """
    begun = begun_attempt(approval, item)
    used_for = [use.item for use in standing.uses] if standing else []
    if standing is None or item.id not in used_for:
        return (begun,)
    use = 1 + used_for.index(item.id)
    return begun, Attempt(standing.id, use, begun.number, item.id)


def spent_by(
    before: Approval, after: Approval, standing: Approval | None = None
) -> tuple[Attempt, ...]:
    """Return the attempts that a change of an approval spends.

    ``standing`` is the standing approval that covers a call which the change claims.
    """
    found: list[Attempt] = []
    for was, now in zip(before.items, after.items, strict=True):
        if was is now:
            continue
        if _is_claimed(was, now):
            found += begun_attempts(after, now, standing)
        elif _is_ended(was, now):
            found.append(next_attempt(before, was))
    return tuple(found)


def _is_claimed(was: Item, now: Item) -> bool:
    return now.state is ItemState.EXECUTING and now.fence > was.fence


def _is_ended(was: Item, now: Item) -> bool:
    if was.state is ItemState.AUTHORIZED:
        return now.state is ItemState.PENDING or now.state in _ENDED
    return was.state is ItemState.IN_DOUBT and now.state in _ENDED


def _returns(item: Item) -> int:
    return item.revoked.times if item.revoked else 0
