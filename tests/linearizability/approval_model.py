"""The promises of one approval to deciders, executors and readers.

It is the sequential object of the checker, written from ARCHITECTURE.md and not from
the code: an approval of one call, which needs one or two people.

Time is not in it. An effect of time is a separate open operation, called at the
earliest moment when it may happen. ``late`` is the moment after which no decision
counts, and ``expire`` the write that ends the wait, which a withdrawal may precede.
``owner_lost`` ends the claim of an executor without heartbeats. The call of a key with
an ``h`` runs in another program: its decision is handed over, and an ended claim leaves
no doubt, but may be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from tests.linearizability.history import Operation, Value

REFUSED: Final = "refused"
CLAIMED: Final = "claimed"
_LATE: Final = "late"
_HANDING: Final = "handing_over"
_CLOSES: Final = {"reject": "rejected", "respond": "answered"}
_SHOWN: Final = {_LATE: "pending"}


@dataclass(frozen=True, slots=True)
class State:
    """One approval.

    Attributes:
        item: its id; "" before it is submitted.
        votes: people who approved this version, in order.
        decision: the person who ended the wait, and the verb.
        action: the action to run, as a number that differs with each edit.
        fence: of the newest claim; it never goes back.
        result: of the execution.
    """

    item: str = ""
    status: str = "none"
    version: int = 1
    action: int = 0
    votes: tuple[str, ...] = ()
    decision: tuple[str, ...] = ()
    fence: int = 0
    owner: str = ""
    result: str = ""

    @property
    def shown(self) -> tuple[Value, ...]:
        """Return what a reader sees."""
        status = _SHOWN.get(self.status, self.status)
        return (status, self.version, self.action, self.votes, self.decision,
                self.fence, self.result)  # fmt: skip


class ApprovalModel:
    """Approvals whose key begins with the number of people that they need."""

    def start(self) -> State:
        """Return an approval that was not requested yet."""
        return State()

    def is_read(self, operation: Operation) -> bool:
        """Return True for what never changes anything."""
        output = operation.output
        is_refused = isinstance(output, tuple) and output[:1] == (REFUSED,)
        return operation.name == "read" or (is_refused and operation.name == "decide")

    def step(self, state: State, operation: Operation) -> Iterable[State]:
        """Return the possible next states."""
        output, after = answered(state, operation)
        return (after,) if operation.is_open or output == operation.output else ()


def answered(state: State, operation: Operation) -> tuple[Value, State]:
    """Return what an operation answers in a state, and the next state."""
    return _STEPS[operation.name](state, operation)


def _submit(state: State, operation: Operation) -> tuple[Value, State]:
    if state.item:
        return state.item, state
    # The store chooses the id; if its answer was lost, later operations reveal it.
    (action, *_), item = operation.given, operation.output
    assert isinstance(action, int)
    fresh = State(item=str(item or "?"), status="pending", action=action)
    return fresh.item, fresh


def _decide(state: State, operation: Operation) -> tuple[Value, State]:
    person, word, version, action = operation.given
    assert isinstance(person, str)
    assert isinstance(word, str)
    refusal = _refusal(state, person, word, version)
    if refusal is not None:
        return (REFUSED, *refusal), state
    if word in _CLOSES:
        return "decided", replace(state, status=_CLOSES[word], decision=(person, word))
    if word == "edit":
        assert isinstance(action, int)
        state = replace(state, action=action, votes=(), version=state.version + 1)
    voted = replace(state, votes=(*state.votes, person))
    if len(voted.votes) < int(operation.key[0]):
        return "voted", voted
    # An authorization of an edited call is for one of the edits.
    last = "edit" if state.version > 1 else "approve"
    return "decided", replace(voted, status="authorized", decision=(person, last))


def _refusal(
    state: State, person: str, word: str, version: Value
) -> tuple[Value, ...] | None:
    if state.status == _LATE:
        return "expired", ()
    if state.status != "pending":
        return state.status, state.decision
    if version != state.version:
        return "changed", state.version
    return ("voted",) if word == "approve" and person in state.votes else None


def _withdraw(state: State, _: Operation) -> tuple[Value, State]:
    # An authorized call that did not begin ends as well, and so does a hand-over that
    # broke off; a begun call does not.
    is_left = state.status == _HANDING and not state.owner
    if state.status not in {"pending", _LATE, "authorized"} and not is_left:
        return None, state
    # The votes stay; the decision ends with the authorization.
    return None, replace(state, status="withdrawn", decision=())


def _late(state: State, _: Operation) -> tuple[Value, State]:
    if state.status != "pending":
        return None, state
    return None, replace(state, status=_LATE)


def _expire(state: State, _: Operation) -> tuple[Value, State]:
    if state.status != _LATE:
        return None, state
    return None, replace(state, status="expired")


def _claim(state: State, operation: Operation) -> tuple[Value, State]:
    (owner,) = operation.given
    assert isinstance(owner, str)
    output: Value
    match state.status:
        case "authorized" | "handing_over" if not state.owner:
            status = _HANDING if operation.key[1:2] == "h" else "executing"
            state = replace(state, status=status, owner=owner, fence=state.fence + 1)
            output = (CLAIMED, state.fence, state.action)
        case "executing" | "handing_over" if state.owner == owner:
            output = (CLAIMED, state.fence, state.action)
        case "executing" | "handing_over":
            output = "busy"
        case "handed_over" | "not_taken":
            output = ("handed_over", state.status == "handed_over")
        case "executed" | "failed":
            output = ("done", state.result)
        case "in_doubt":
            output = "in_doubt"
        case status:
            output = (REFUSED, _SHOWN.get(status, status))
    return output, state


def _finish(state: State, operation: Operation) -> tuple[Value, State]:
    fence, result = operation.given
    assert isinstance(result, str)
    if state.fence != fence:
        return False, state
    if state.status in {"executing", "in_doubt"}:
        return True, replace(state, status="executed", owner="", result=result)
    return state.status == "executed", state


def _hand_over(state: State, operation: Operation) -> tuple[Value, State]:
    fence, is_taken = operation.given
    end = "handed_over" if is_taken else "not_taken"
    if state.fence != fence:
        return False, state
    if state.status == _HANDING:
        return True, replace(state, status=end, owner="")
    return state.status == end, state


def _release(state: State, operation: Operation) -> tuple[Value, State]:
    (fence,) = operation.given
    if state.status not in {"executing", _HANDING} or state.fence != fence:
        return None, state
    return None, replace(state, status="authorized", owner="")


def _owner_lost(state: State, operation: Operation) -> tuple[Value, State]:
    (owner,) = operation.given
    if state.status not in {"executing", _HANDING} or state.owner != owner:
        return None, state
    if state.status == _HANDING:
        return None, replace(state, owner="")
    return None, replace(state, status="in_doubt")


def _read(state: State, _: Operation) -> tuple[Value, State]:
    return state.shown, state


_STEPS: dict[str, Callable[[State, Operation], tuple[Value, State]]] = {
    "submit": _submit,
    "decide": _decide,
    "withdraw": _withdraw,
    "late": _late,
    "expire": _expire,
    "claim": _claim,
    "finish": _finish,
    "hand_over": _hand_over,
    "release": _release,
    "owner_lost": _owner_lost,
    "read": _read,
}
