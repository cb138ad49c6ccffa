"""Context of a run: which run an agent belongs to, and which tools have no gate."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from contextvars import ContextVar

from keyturn.gateway.context_values import Inside
from keyturn.gateway.protocol.records import RunRef

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


class in_run:  # noqa: N801 - used as a function, in `with`
    """Let agents inside this block belong to a run; None leaves it as it is.

    The run that they belonged to before is around this one.
    """

    __slots__ = ("_outer", "_run_ref", "_token")

    def __init__(self, run_ref: RunRef | None) -> None:
        self._run_ref = run_ref

    def __enter__(self) -> None:
        """Begin."""
        run_ref, before = self._run_ref, _run.get()
        # Entering the same run twice, as a subgraph does, must not make it the run
        # around itself.
        is_other = run_ref is not None and before is not None and before != run_ref
        self._outer = _enclosing.set(before if is_other else _enclosing.get())
        self._token = _run.set(run_ref or before)

    def __exit__(self, *_: object) -> None:
        """End it."""
        _run.reset(self._token)
        _enclosing.reset(self._outer)


def current_run() -> RunRef | None:
    """Return the run that agents of this context belong to, if one was set."""
    return _run.get()


def enclosing_run(run_ref: RunRef) -> RunRef | None:
    """Return the run in whose tool the agents of another run work, if there is one.

    An agent that is given a thread of its own is a run of its own, but the people of
    the run around it may have asked for what it does.
    """
    outer = _run.get()
    if outer == run_ref:
        outer = _enclosing.get()
    return outer if outer != run_ref else None


def excepting(tools: Collection[str]) -> AbstractContextManager[object]:
    """Allow these tools to start without a gate in the runs of this block."""
    return Inside(_ungated, frozenset(tools))


def excepted() -> frozenset[str]:
    """Return the names of the tools that may start ungated in this context."""
    return _ungated.get()


def lasting(left_s: Callable[[], float]) -> AbstractContextManager[object]:
    """Let questions know how long the lease on their thread lives unless it is kept."""
    return Inside(_left_s, left_s)


def lease_left_s() -> float:
    """Return how long the lease on the thread lives; 0 for none."""
    left_s = _left_s.get()
    return left_s() if left_s else 0.0


def has_lost_lease() -> bool:
    """Return True if this code began under a lease that has ended."""
    left_s = _left_s.get()
    return left_s is not None and not left_s()


def under_lease(text: Callable[[], str]) -> AbstractContextManager[object]:
    """Let questions to a gateway in another process name a lease on a thread."""
    return Inside(_lease, text)


def current_lease() -> str:
    """Return how a gateway in another process names the lease; "" for none."""
    text = _lease.get()
    return text() if text else ""
