"""Context of a run: its thread, ungated tools, its lease."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from keyturn.gateway.protocol.records import RunRef

T = TypeVar("T")
Scope = AbstractContextManager[object]
"""A block in which variables of the context have other values."""


@contextmanager
def inside(variable: ContextVar[T], value: T) -> Generator[T]:
    """Give a variable a value inside a block, and its former one after it."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


_run: ContextVar[RunRef | None] = ContextVar("keyturn_run", default=None)
_enclosing: ContextVar[RunRef | None] = ContextVar(
    "keyturn_enclosing_run", default=None
)
_ungated: ContextVar[frozenset[str]] = ContextVar(
    "keyturn_ungated", default=frozenset()
)
_left_s: ContextVar[Callable[[], float] | None] = ContextVar(
    "keyturn_lease_left", default=None
)
_lease: ContextVar[Callable[[], str] | None] = ContextVar(
    "keyturn_remote_lease", default=None
)


@contextmanager
def in_run(run_ref: RunRef | None) -> Generator[None]:
    """Set the run of the agents inside this block; None changes nothing.

    Their previous run becomes the enclosing run.
    """
    before = _run.get()
    # Entering the same run twice, as a subgraph does, must not make it its own
    # enclosing run.
    is_other = run_ref is not None and before is not None and before != run_ref
    outer = before if is_other else _enclosing.get()
    with inside(_enclosing, outer), inside(_run, run_ref or before):
        yield


def current_run() -> RunRef | None:
    """Return the run of the agents of this context, if one was set."""
    return _run.get()


def enclosing_run(run_ref: RunRef) -> RunRef | None:
    """Return the run in whose tool the agents of another run work, if any.

    An agent with a separate thread has a separate run, but the people of the enclosing
    run may have asked for its calls.
    """
    outer = _run.get()
    if outer == run_ref:
        outer = _enclosing.get()
    return outer if outer != run_ref else None


def excepting(tools: Collection[str]) -> Scope:
    """Allow these tools to start without a gate in the runs of this block."""
    return inside(_ungated, frozenset(tools))


def excepted() -> frozenset[str]:
    """Return the names of tools that may start without a gate in this context."""
    return _ungated.get()


def lasting(left_s: Callable[[], float]) -> Scope:
    """Set the function that returns the remaining lifetime of the thread's lease."""
    return inside(_left_s, left_s)


def has_lost_lease() -> bool:
    """Return True if this code began under a lease that has ended."""
    left_s = _left_s.get()
    return left_s is not None and not left_s()


def under_lease(text: Callable[[], str]) -> Scope:
    """Set the lease header for requests to a gateway in another process."""
    return inside(_lease, text)


def current_lease() -> str:
    """Return the lease header for a gateway in another process; "" without one."""
    text = _lease.get()
    return text() if text else ""
