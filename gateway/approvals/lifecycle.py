"""Item state machine: the one table of transitions."""

from __future__ import annotations

from enum import StrEnum

from twokey.gateway.errors import IllegalMove
from twokey.gateway.protocol.states import ItemState


class ApprovalState(StrEnum):
    """An approval is open while one of its items is pending."""

    OPEN = "open"
    CLOSED = "closed"


class Move(StrEnum):
    """Everything that can happen to an item."""

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
    REOPEN = "reopen"


_S = ItemState
TRANSITIONS: dict[tuple[ItemState, Move], ItemState] = {
    (_S.PENDING, Move.AUTHORIZE): _S.AUTHORIZED,
    # The policy decides it as it opens, so it waits for nobody.
    (_S.PENDING, Move.CLEAR): _S.AUTHORIZED,
    (_S.PENDING, Move.REJECT): _S.REJECTED,
    (_S.PENDING, Move.ANSWER): _S.ANSWERED,
    (_S.PENDING, Move.EXPIRE): _S.EXPIRED,
    (_S.PENDING, Move.SUPERSEDE): _S.SUPERSEDED,
    (_S.PENDING, Move.WITHDRAW): _S.WITHDRAWN,
    (_S.AUTHORIZED, Move.CLAIM): _S.EXECUTING,
    (_S.AUTHORIZED, Move.LAPSE): _S.LAPSED,
    # The policy of the claim needs more than the votes that there are.
    (_S.AUTHORIZED, Move.REOPEN): _S.PENDING,
    # The record was restored from an older copy, so it may have run since.
    (_S.AUTHORIZED, Move.DOUBT): _S.IN_DOUBT,
    # People let it run again, and then the executor they had given up on reported.
    (_S.AUTHORIZED, Move.EXECUTE): _S.EXECUTED,
    (_S.AUTHORIZED, Move.FAIL): _S.FAILED,
    # The owner died, and the tool is idempotent: another attempt takes over.
    (_S.EXECUTING, Move.CLAIM): _S.EXECUTING,
    (_S.EXECUTING, Move.EXECUTE): _S.EXECUTED,
    (_S.EXECUTING, Move.FAIL): _S.FAILED,
    (_S.EXECUTING, Move.DOUBT): _S.IN_DOUBT,
    # A nested pause (an agent inside the tool asks too) is not a crash.
    (_S.EXECUTING, Move.RELEASE): _S.AUTHORIZED,
    (_S.IN_DOUBT, Move.EXECUTE): _S.EXECUTED,
    (_S.IN_DOUBT, Move.FAIL): _S.FAILED,
    (_S.IN_DOUBT, Move.RETRY): _S.AUTHORIZED,
    # People left it, and then its executor reported that it had run.
    (_S.FAILED, Move.EXECUTE): _S.EXECUTED,
}

# Derived from the table, so that a new row cannot leave a state final.
FINAL: frozenset[ItemState] = frozenset(ItemState) - {state for state, _ in TRANSITIONS}
"""The states that nothing follows."""

UNEXECUTED: frozenset[ItemState] = frozenset(
    {
        _S.REJECTED,
        _S.ANSWERED,
        _S.EXPIRED,
        _S.SUPERSEDED,
        _S.WITHDRAWN,
        _S.LAPSED,
    }
)
"""The final states without a result: the tool does not run, or not again.

It may have been started before: claimed, then paused, and the approval taken back.
"""


def advance(state: ItemState, move: Move) -> ItemState:
    """Return the state that follows.

    Raises:
        IllegalMove: when the table has no such row.
    """
    try:
        return TRANSITIONS[state, move]
    except KeyError:
        raise IllegalMove(state, move) from None


def approval_state(items: list[ItemState]) -> ApprovalState:
    """Return the state of an approval from the states of its items."""
    is_open = ItemState.PENDING in items
    return ApprovalState.OPEN if is_open else ApprovalState.CLOSED
