"""Let what a thread waits for pass by other middlewares.

LangChain's `ToolRetryMiddleware` makes a tool message of any exception when it has
tried for a while. A call that people approved would then be lost to an outage of a
minute. What LangGraph itself raises to pause goes past such a middleware, and past a
tool node; so an outage does, too. LangGraph then cuts off no other call
of the step either.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from langgraph.errors import GraphBubbleUp

from twokey.gateway.errors import (
    KeyRefused,
    StateUnknown,
    StoreUnavailable,
    ThreadUnavailable,
)


@contextmanager
def passing() -> Generator[None]:
    """Raise an outage of this block so that only who runs the thread catches it."""
    try:
        yield
    except (ThreadUnavailable, StoreUnavailable, StateUnknown, KeyRefused) as error:
        # The same error: its text, its facts and its class are asked for further out.
        kind: Any = type(error)
        cast("Any", error).__class__ = _passing(kind)
        raise


@cache
def _passing(kind: type[Any]) -> type[Any]:
    if issubclass(kind, GraphBubbleUp):
        return kind

    def plain_class(_error: object) -> type[Any]:
        # The other class has no place where another process could look it up.
        return kind

    own: dict[str, Any] = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "plain_class": plain_class,
    }
    return type(kind.__name__, (kind, GraphBubbleUp), own)
