"""Compare the bounds of a standing approval with past calls that people decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keyturn.gateway.approvals.quorum import asks_more
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.similar import Bounds
from keyturn.gateway.protocol.records import ItemState, Tier

_USUAL = 2
_UNDECIDED = frozenset(
    {ItemState.PENDING, ItemState.EXPIRED, ItemState.SUPERSEDED, ItemState.WITHDRAWN}
)
_REFUSED = frozenset({ItemState.REJECTED, ItemState.ANSWERED})


@dataclass(frozen=True)
class PastCalls:
    """The newest calls of one agent and tool that people decided.

    Attributes:
        decided: how many there are.
        within: how many of them are within the bounds.
        corrected: how many of those a person changed, rejected or answered.
        each_micro: the bounds' largest amount of one call, in millionths: that of the
            call at hand, or the largest that people approved unchanged.
    """

    decided: int = 0
    within: int = 0
    corrected: int = 0
    each_micro: int = 0

    @property
    def is_usual(self) -> bool:
        """Return whether people approved such calls twice or more, and always."""
        return self.within >= _USUAL and not self.corrected


def compared(bounds: Bounds, source: Item, items: Iterable[Item]) -> PastCalls:
    """Return the past calls as seen from these bounds.

    A call is within them by the arguments that its agent requested, if it had tier
    ``approve`` and needed no other people than the call at hand.

    Args:
        bounds: proposed from the call at hand, with its amount as the largest one.
        source: the call at hand.
        items: past calls of the same agent and tool.
    """
    decided = [item for item in items if _is_decided(item)]
    unlimited = bounds.with_(each_micro=bounds.total_micro)
    amounts = [
        (item, amount)
        for item in decided
        if item.tier is Tier.APPROVE
        and not asks_more(item.requirement, source.requirement)
        and (amount := unlimited.amount_of(item.requested_args)) is not None
    ]
    approved = [amount for item, amount in amounts if not _is_corrected(item)]
    each_micro = max(approved, default=0)
    each_micro = max(each_micro, min(bounds.each_micro, bounds.total_micro))
    within = [item for item, amount in amounts if amount <= each_micro]
    corrected = sum(map(_is_corrected, within))
    return PastCalls(len(decided), len(within), corrected, each_micro)


def _is_decided(item: Item) -> bool:
    is_asked = item.tier.needs_people and item.cover is None and not item.is_standing
    return is_asked and item.state not in _UNDECIDED


def _is_corrected(item: Item) -> bool:
    return item.edit is not None or item.state in _REFUSED
