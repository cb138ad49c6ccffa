"""The promises of one approval to people who click while a gateway runs its call.

Claims and reports are steps of the gateway; visible are only the effect of the tool and
the readings. The reply to a click is ``decided`` or ``stale``. A click that is repeated
until replicas have its write may be reported as stale because of its first copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.linearizability.history import Operation

_NEXT = {
    "pending": ("superseded",),
    # A process died before the message of the call was kept, or the answer to the
    # submission was lost with the store: the model is asked again (decision 0012).
    "authorized": ("executing", "lapsed", "withdrawn"),
    # Given back, ended with or without a result, or its process died.
    "executing": ("authorized", "executed", "in_doubt"),
    "in_doubt": ("executed",),
}


@dataclass(frozen=True, slots=True)
class Clicked:
    """One approval: its state, its decider, and whether its tool ran."""

    status: str = "pending"
    by: str = ""
    has_run: bool = False


class ClickModel:
    """An approval of one call that needs one person, from when it was opened."""

    def start(self) -> Clicked:
        """Return an approval that waits."""
        return Clicked()

    def is_read(self, operation: Operation) -> bool:
        """Return False: every observation may reveal a step of the gateway."""
        del operation
        return False

    def step(self, state: Clicked, operation: Operation) -> Iterable[Clicked]:
        """Return the possible next states."""
        match operation.name:
            case "click":
                return self._click(state, operation)
            case "effect":
                # Once for an authorization, and never without.
                if state.has_run or not _reaches(state, "executing"):
                    return ()
                return (replace(state, status="executing", has_run=True),)
            case _:
                return self._read(state, operation)

    def _click(self, state: Clicked, operation: Operation) -> Iterable[Clicked]:
        (person,) = operation.given
        won = replace(state, status="authorized", by=str(person))
        is_pending = state.status == "pending"
        if operation.output == "decided":
            return (won,) if is_pending else ()
        return (won,) if is_pending else (state,)

    def _read(self, state: Clicked, operation: Operation) -> Iterable[Clicked]:
        assert isinstance(operation.output, tuple)
        status, by = operation.output
        if by != state.by or not _reaches(state, str(status)):
            return ()
        # What ended well has run, and what ended did not run unseen.
        if status == "executed" and not state.has_run:
            return ()
        return (replace(state, status=str(status)),)


def _reaches(state: Clicked, status: str) -> bool:
    """Return whether a gateway alone may bring an approval from there to here."""
    found, left = {state.status}, [state.status]
    while left:
        for after in _NEXT.get(left.pop(), ()):
            if after not in found:
                found.add(after)
                left.append(after)
    # A call that ran is not started again, and did not end without having run.
    if state.has_run and status in {"authorized", "lapsed", "withdrawn"}:
        return False
    return status in found
