"""Item state machine: the one table of transitions."""

from __future__ import annotations

from enum import StrEnum

from keyturn.gateway.errors import IllegalTransition
from keyturn.gateway.protocol.records import ItemState


class ApprovalState(StrEnum):
    """An approval is open while one of its items is pending."""

    OPEN = "open"
    CLOSED = "closed"


class Transition(StrEnum):
    """Trigger of a change from one state of an item to the next."""

    AUTHORIZE = "authorize"
    CLEAR = "clear"
    REJECT = "reject"
    ANSWER = "answer"
    EXPIRE = "expire"
    SUPERSEDE = "supersede"
    WITHDRAW = "withdraw"
    LAPSE = "lapse"
    CLAIM = "claim"
    RELEASE = "release"
    EXECUTE = "execute"
    FAIL = "fail"
    DOUBT = "doubt"
    RETRY = "retry"
    HAND = "hand"
    TAKE = "take"
    MISS = "miss"
    REOPEN = "reopen"


_S = ItemState
TRANSITIONS: dict[tuple[ItemState, Transition], ItemState] = {
    (_S.PENDING, Transition.AUTHORIZE): _S.AUTHORIZED,
    # The policy clears it at its opening, so it does not wait.
    (_S.PENDING, Transition.CLEAR): _S.AUTHORIZED,
    (_S.PENDING, Transition.REJECT): _S.REJECTED,
    (_S.PENDING, Transition.ANSWER): _S.ANSWERED,
    (_S.PENDING, Transition.EXPIRE): _S.EXPIRED,
    (_S.PENDING, Transition.SUPERSEDE): _S.SUPERSEDED,
    (_S.PENDING, Transition.WITHDRAW): _S.WITHDRAWN,
    (_S.AUTHORIZED, Transition.CLAIM): _S.EXECUTING,
    (_S.AUTHORIZED, Transition.LAPSE): _S.LAPSED,
    # Its agent gave it up: the thread is gone, or it got an answer elsewhere.
    (_S.AUTHORIZED, Transition.WITHDRAW): _S.WITHDRAWN,
    # The policy at the claim needs more than the existing votes.
    (_S.AUTHORIZED, Transition.REOPEN): _S.PENDING,
    # The record was restored from an older copy, so the call may have run since.
    (_S.AUTHORIZED, Transition.DOUBT): _S.IN_DOUBT,
    # People let it run again; then the executor of the earlier attempt reported.
    (_S.AUTHORIZED, Transition.EXECUTE): _S.EXECUTED,
    (_S.AUTHORIZED, Transition.FAIL): _S.FAILED,
    # The owner died, and the tool is idempotent: another attempt takes over.
    (_S.EXECUTING, Transition.CLAIM): _S.EXECUTING,
    (_S.EXECUTING, Transition.EXECUTE): _S.EXECUTED,
    (_S.EXECUTING, Transition.FAIL): _S.FAILED,
    (_S.EXECUTING, Transition.DOUBT): _S.IN_DOUBT,
    # A nested pause (an agent inside the tool asks too) is not a crash.
    (_S.EXECUTING, Transition.RELEASE): _S.AUTHORIZED,
    (_S.IN_DOUBT, Transition.EXECUTE): _S.EXECUTED,
    (_S.IN_DOUBT, Transition.FAIL): _S.FAILED,
    (_S.IN_DOUBT, Transition.RETRY): _S.AUTHORIZED,
    # People skipped it; then its executor reported that it had run.
    (_S.FAILED, Transition.EXECUTE): _S.EXECUTED,
    # Another program runs it: only the decision is handed over.
    (_S.AUTHORIZED, Transition.HAND): _S.HANDING_OVER,
    # The connector died. The program takes a decision once, so another one repeats it.
    (_S.HANDING_OVER, Transition.HAND): _S.HANDING_OVER,
    # The program is busy.
    (_S.HANDING_OVER, Transition.RELEASE): _S.AUTHORIZED,
    (_S.HANDING_OVER, Transition.TAKE): _S.HANDED_OVER,
    (_S.HANDING_OVER, Transition.MISS): _S.NOT_TAKEN,
    # The connector died, and nobody knows whether the program took the decision.
    (_S.HANDING_OVER, Transition.WITHDRAW): _S.WITHDRAWN,
    (_S.HANDING_OVER, Transition.LAPSE): _S.LAPSED,
}

# Derived from the table, so that a new row cannot leave a state final.
FINAL: frozenset[ItemState] = frozenset(ItemState) - {state for state, _ in TRANSITIONS}
"""The states without a further transition."""

ENDS = {_S.PENDING: Transition.WITHDRAW, _S.AUTHORIZED: Transition.LAPSE}
"""Transition that ends a call for good while it waits for people or for its start."""

UNEXECUTED: frozenset[ItemState] = frozenset(
    {_S.REJECTED, _S.ANSWERED, _S.EXPIRED, _S.SUPERSEDED, _S.WITHDRAWN, _S.LAPSED}
)
"""The final states without a result: the tool does not run, or not again.

It may have been started before: claimed, then paused, and the approval taken back.
"""


def advance(state: ItemState, transition: Transition) -> ItemState:
    """Return the next state.

    Raises:
        IllegalTransition: when the table has no such row.
    """
    try:
        return TRANSITIONS[state, transition]
    except KeyError:
        raise IllegalTransition(state, transition) from None
