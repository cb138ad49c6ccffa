"""Precedents of a call: how earlier calls with the same effect ended.

They are read from the store when a call is evaluated, and never stored with it.
"""

from __future__ import annotations

from enum import StrEnum

from keyturn.gateway.protocol.records import ItemState, Person, Record

DAY_MS = 24 * 60 * 60 * 1000
"""How far back rules count, in milliseconds."""

MOST_KEPT = 20
"""Precedents of one kind that are kept for one effect, the newest."""

MOST_REASON = 300
"""Characters of a rejection's reason that are kept with it."""


class PrecedentKind(StrEnum):
    """What a precedent says against a call: it was done, is refused, or waits."""

    DONE = "done"
    REJECTED = "rejected"
    WAITING = "waiting"


KINDS = {
    ItemState.PENDING: PrecedentKind.WAITING,
    # Authorized counts as done: it may run at any moment, and two people who approve
    # the same at once would else not know of each other.
    ItemState.AUTHORIZED: PrecedentKind.DONE,
    ItemState.EXECUTING: PrecedentKind.DONE,
    ItemState.EXECUTED: PrecedentKind.DONE,
    ItemState.IN_DOUBT: PrecedentKind.DONE,
    ItemState.REJECTED: PrecedentKind.REJECTED,
}
"""State of a call to the kind of precedent that it is; calls of others are none."""


class Precedent(Record):
    """Another call with the same effect.

    Attributes:
        call: its item, or a name that is no item's for a call of tier ``auto``.
        state: the state it reached.
        agent: who asked for it.
        by: who approved or rejected it; empty when the policy decided alone.
        reason: a reviewer's words for a rejection: untrusted, may be cut.
        args_hash: the same for the same arguments.
        since_ms: when it became a precedent of its kind, by the store's clock.
        at_ms: when it reached its state.
    """

    call: str
    state: ItemState
    agent: str = ""
    by: tuple[Person, ...] = ()
    reason: str = ""
    args_hash: str = ""
    since_ms: int = 0
    at_ms: int = 0

    @property
    def kind(self) -> PrecedentKind:
        """Return what it says against a call."""
        return KINDS[self.state]

    @property
    def approval(self) -> str:
        """Return the id of its approval; no approval's for a call without one."""
        return self.call.rpartition(".")[0]


class WindowTotal(Record):
    """What the other calls in a window of a call come to.

    Attributes:
        window: its name in the policy.
        by: what the policy counts by; "" for all calls.
        others_micro: their total in millionths, waiting calls included.
        within_ms: its length.
        is_count: it counts calls; else it adds up amounts.
    """

    window: str
    by: str
    others_micro: int
    within_ms: int
    is_count: bool


class Past(Record):
    """What is known of earlier calls when a call is evaluated.

    An empty one means that there is no record, not that nothing ever happened: records
    end.

    Attributes:
        precedents: newest first.
        totals: of the windows that the call counts in, without those that would tell
            of an argument that the policy hides.
        same_by: the arguments by which the policy compares calls of this tool; empty
            for all of them.
    """

    precedents: tuple[Precedent, ...] = ()
    totals: tuple[WindowTotal, ...] = ()
    same_by: tuple[str, ...] = ()

    def of_kind(self, kind: PrecedentKind) -> tuple[Precedent, ...]:
        """Return the precedents of one kind, newest first."""
        return tuple(one for one in self.precedents if one.kind is kind)

    def count(self, kind: PrecedentKind, *, now_ms: int) -> int:
        """Return how many of a kind there were in the last 24 hours."""
        return sum(one.at_ms > now_ms - DAY_MS for one in self.of_kind(kind))
