"""Precedents of a call: how earlier calls with the same effect ended.

They are read from the store when a call is evaluated, and never stored with it.
"""

from __future__ import annotations

from enum import StrEnum

from keyturn.gateway.protocol.records import ItemState, Person, Record

DAY_MS = 24 * 60 * 60 * 1000
"""Time range of counts in rules, in milliseconds."""

MOST_KEPT = 20
"""Number of precedents to keep for one effect and kind, the newest."""

MOST_REASON = 300
"""Length of the stored reason of a rejection, in characters."""


class PrecedentKind(StrEnum):
    """Kind of a precedent: done, rejected or waiting."""

    DONE = "done"
    REJECTED = "rejected"
    WAITING = "waiting"


KINDS = {
    ItemState.PENDING: PrecedentKind.WAITING,
    # Authorized counts as done: it may run at any moment. Otherwise two people could
    # approve the same at once without a warning.
    ItemState.AUTHORIZED: PrecedentKind.DONE,
    ItemState.EXECUTING: PrecedentKind.DONE,
    ItemState.HANDING_OVER: PrecedentKind.DONE,
    ItemState.HANDED_OVER: PrecedentKind.DONE,
    ItemState.EXECUTED: PrecedentKind.DONE,
    ItemState.IN_DOUBT: PrecedentKind.DONE,
    ItemState.REJECTED: PrecedentKind.REJECTED,
}
"""State of a call to its kind of precedent; other states are no precedents."""


class Precedent(Record):
    """Another call with the same effect.

    Attributes:
        call: its item id, or a unique name for a call of tier ``auto``.
        state: its latest state.
        agent: the agent that requested it.
        by: the people who approved or rejected it; empty if the policy decided alone.
        reason: a reviewer's reason for a rejection: untrusted, may be cut.
        args_hash: equal for equal arguments.
        since_ms: start of its present kind, by the store's clock.
        at_ms: start of its present state.
    """

    call: str
    state: ItemState = ItemState.PENDING
    agent: str = ""
    by: tuple[Person, ...] = ()
    reason: str = ""
    args_hash: str = ""
    since_ms: int = 0
    at_ms: int = 0

    @property
    def kind(self) -> PrecedentKind:
        """Return its kind."""
        return KINDS[self.state]

    @property
    def approval(self) -> str:
        """Return the id of its approval; not a real id for a call without one."""
        return self.call.rpartition(".")[0]


class WindowTotal(Record):
    """Total of the other calls in a window of a call.

    Attributes:
        window: its name in the policy.
        by: the policy's grouping key; "" for all calls.
        others_micro: their total in millionths, waiting calls included.
        within_ms: its length.
        is_count: it counts calls; otherwise it adds up amounts.
    """

    window: str
    by: str
    others_micro: int
    within_ms: int
    is_count: bool


class Past(Record):
    """Facts about earlier calls for the evaluation of a call.

    An empty record does not prove that there were no earlier calls: records expire.

    Attributes:
        precedents: newest first.
        totals: of the call's windows, except those that would reveal an argument that
            the policy hides.
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
        """Return the number of precedents of a kind in the last 24 hours."""
        return sum(one.at_ms > now_ms - DAY_MS for one in self.of_kind(kind))
