"""Collect edits to calls of nested agents, and report them to the outer agent.

A nested agent reports an edit where it learns of it: before each model call those that
its state names, after a call that one of its own. An outer tool that goes on after a
pause starts from the beginning and knows nothing of earlier reports, and its agent may
end without another model call; so what state names is reported before each call, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from twokey.agent import nesting
from twokey.gateway.context_values import Inside
from twokey.gateway.protocol import run_context
from twokey.gateway.protocol.records import EditRecord, RunRef

_inside: ContextVar[list[EditRecord] | None] = ContextVar("twokey_inside", default=None)


class collect_edits:  # noqa: N801 - used as a function, in `with`
    """Collect the edits that agents inside the running tool report, of this run."""

    __slots__ = ("_blocks", "_found")

    def __init__(self, run_ref: RunRef) -> None:
        self._found: list[EditRecord] = []
        self._blocks = (
            Inside(_inside, self._found),
            run_context.in_run(run_ref),
            nesting.own_conversation(),
        )

    def __enter__(self) -> list[EditRecord]:
        """Begin; return the list that they are added to."""
        for block in self._blocks:
            block.__enter__()
        return self._found

    def __exit__(self, *_: object) -> None:
        """End it."""
        for block in reversed(self._blocks):
            block.__exit__()


def is_nested() -> bool:
    """Return whether this agent runs inside a tool of another gated agent."""
    return _inside.get() is not None


def report_edits(records: Sequence[EditRecord]) -> None:
    """Report edits to the outer agent, if there is one."""
    found = _inside.get()
    if found is not None:
        # LangGraph reruns the node after a pause, and the agent then reports again.
        found.extend(record for record in records if record not in found)
