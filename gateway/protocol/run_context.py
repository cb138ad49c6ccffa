"""Context of a run: its thread, ungated tools, its lease, the write that is retried.

The gateway keeps the answer to a write for a while under the idempotency key that came
with it, so that an attempt whose answer was lost gets the first one's answer. What is
retried belongs inside one `one_write`; another question, even of the same words, does
not.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import Generic, TypeVar

from keyturn.gateway.protocol.records import RunRef

HEADER = "Idempotency-Key"

T = TypeVar("T")


class Inside(Generic[T]):
    """Give a variable a value inside a block, and its former one after it.

    A call of a tool enters ten such blocks. What `contextlib.contextmanager` makes of a
    generator takes four times as long.

    Args:
        variable: of the context.
        value: inside the block.
    """

    __slots__ = ("_token", "_variable", "value")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self.value = value
        self._token: Token[T] | None = None

    def __enter__(self) -> T:
        """Set the value, and return it."""
        self._token = self._variable.set(self.value)
        return self.value

    def __exit__(self, *_: object) -> None:
        """Set back the former value."""
        if self._token is not None:
            self._variable.reset(self._token)


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


# Attempts that copied the context share the write, and so its key.
_write: ContextVar[dict[str, str] | None] = ContextVar(
    "keyturn_idempotency_key", default=None
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


def one_write(write: dict[str, str] | None = None) -> Inside[dict[str, str] | None]:
    """Give all attempts inside the block the same idempotency key.

    Args:
        write: shared with other blocks of the same write, and holds its key under
            `HEADER` once it was used; by default the block is a write of its own.
    """
    return Inside(_write, {} if write is None else write)


def key_of_write() -> str:
    """Return the key of the write around this code, a new one outside of any."""
    write = _write.get()
    # One step, so that two attempts at once cannot make two keys.
    return (write if write is not None else {}).setdefault(HEADER, uuid.uuid4().hex)


def attempt_of(owner: str) -> str:
    """Return the name of the attempt that claims a call in this write.

    An owner that claims again in another write is another attempt: only a request
    that is repeated with its key, because its answer was lost, is granted again.
    """
    # A key has no blank, so two pairs never get one name.
    return f"{owner} {key_of_write()}"
