"""Collect the edits made inside a running tool, and report them to the outer agent."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from twokey.agent import outer_run
from twokey.gateway.protocol import run_context
from twokey.gateway.protocol.records import EditRecord, RunRef

_inside: ContextVar[list[EditRecord] | None] = ContextVar("twokey_inside", default=None)


@contextmanager
def collect_edits(run_ref: RunRef) -> Generator[list[EditRecord]]:
    """Collect the edits that agents inside the running tool report, of this run."""
    found: list[EditRecord] = []
    token = _inside.set(found)
    try:
        with run_context.in_run(run_ref), outer_run.own_conversation():
            yield found
    finally:
        _inside.reset(token)


def is_inside() -> bool:
    """Return whether this agent runs inside a tool of another one, which collects."""
    return _inside.get() is not None


def report(records: Sequence[EditRecord]) -> None:
    """Report the edits that were made in here to the outer agent, if there is one."""
    found = _inside.get()
    if found is not None:
        # An agent reports again when its node runs again.
        found.extend(record for record in records if record not in found)
