"""Keep what the runner of an agent says: whose run it is, and what is ungated."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from twokey.gateway.protocol.records import Home

_home: ContextVar[Home | None] = ContextVar("twokey_home", default=None)
_around: ContextVar[Home | None] = ContextVar("twokey_around", default=None)
_ungated: ContextVar[frozenset[str]] = ContextVar("twokey_ungated", default=frozenset())


@contextmanager
def at_home(home: Home | None) -> Generator[None]:
    """Let agents inside this block belong to a run; None leaves it as it is.

    The run that they belonged to before is around this one.
    """
    before = _home.get()
    is_other = home is not None and before is not None and before != home
    outer = _around.set(before if is_other else _around.get())
    token = _home.set(home or before)
    try:
        yield
    finally:
        _home.reset(token)
        _around.reset(outer)


def current_home() -> Home | None:
    """Return the run that agents of this context belong to, if one was set."""
    return _home.get()


def around(home: Home) -> Home | None:
    """Return the run in whose tool the agents of another run work, if there is one.

    An agent that is given a thread of its own is a run of its own, but the people of
    the run around it may have asked for what it does.
    """
    outer = _home.get()
    if outer == home:
        outer = _around.get()
    return outer if outer != home else None


@contextmanager
def excepting(tools: Collection[str]) -> Generator[None]:
    """Let these tools start ungated in the runs of this block."""
    token = _ungated.set(frozenset(tools))
    try:
        yield
    finally:
        _ungated.reset(token)


def excepted() -> frozenset[str]:
    """Return the names of the tools that may start ungated in this context."""
    return _ungated.get()
