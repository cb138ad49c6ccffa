"""Know the run that an agent belongs to: its own, or that of an agent outside of it.

People speak to the outermost agent and a worker resumes it, so whatever waits inside
its tools belongs to its thread: who asked, what brings it back, what ends it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from gateway.approvals.record import Home
from gateway.errors import GraphError

_home: ContextVar[Home | None] = ContextVar("twokey_home", default=None)


@contextmanager
def at_home(home: Home | None) -> Generator[None]:
    """Let agents inside this block belong to a run; None leaves it as it is."""
    token = _home.set(home or _home.get())
    try:
        yield
    finally:
        _home.reset(token)


def check_name(agent: str, thread: str, ns: str) -> None:
    """Refuse an outermost agent that calls itself otherwise than who runs its thread.

    Its approvals would belong to another run, which nobody brings back.

    Raises:
        GraphError: names both names; nobody was asked.
    """
    home = _home.get()
    if home is None or ns or home.thread != thread or home.agent == agent:
        return
    raise GraphError(
        f"The graph of the agent {home.agent!r} calls itself {agent!r}; write "
        f"ApprovalMiddleware({home.agent!r}), or run it as agent={agent!r}. Nobody "
        "was asked."
    )


def outer_of(agent: str, thread: str, ns: str) -> Home | None:
    """Return the run around an agent; None when it is at home in its own thread.

    LangGraph gives every graph that runs inside another one a namespace. One without
    is outermost, whatever this context was copied from.
    """
    home = _home.get()
    is_own = home == Home(agent=agent, thread=thread)
    return home if ns and not is_own else None
