"""Raise outages past other middleware, so that the thread waits and is tried again.

LangChain's `ToolRetryMiddleware` turns any exception into a tool message after some
tries: an outage of a minute would lose a call that people approved. What LangGraph
raises to pause (`GraphBubbleUp`) is caught by no such middleware and no tool node, so
an outage gets that base class, too. LangGraph then cuts off no other call of the step.
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

OUTAGES = (ThreadUnavailable, StoreUnavailable, StateUnknown, KeyRefused)
"""What a thread waits for."""


@contextmanager
def passing() -> Generator[None]:
    """Give an outage of this block the base class that only LangGraph catches."""
    try:
        yield
    except OUTAGES as error:
        # The same object: callers further out look at its text, facts and class.
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
