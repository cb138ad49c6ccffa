"""Classify a step's errors: permanent errors must not be retried.

A limit that was reached counts from zero in the next attempt, so a retry does not
repeat the error alone: it spends the whole limit on model calls and tools again.
"""

from __future__ import annotations

from langchain.agents.middleware.model_call_limit import ModelCallLimitExceededError
from langchain.agents.middleware.tool_call_limit import ToolCallLimitExceededError
from langgraph.errors import GraphRecursionError

from twokey.gateway.errors import GraphError


class ThreadHalted(GraphError):
    """A thread stands where only the program that runs it may bring it forward.

    Attributes:
        is_announced: it was halted before, and those who have to know were told then.
    """

    def __init__(self, problem: str, *, is_announced: bool = False) -> None:
        self.is_announced = is_announced
        super().__init__(problem)


class AtBreakpoint(ThreadHalted):
    """A graph inside the thread's graph stopped at a static breakpoint of its own."""


def at_breakpoint(thread: str, *, is_announced: bool) -> AtBreakpoint:
    """Return the error about a thread that stands at a breakpoint."""
    return AtBreakpoint(
        f"The thread {thread!r} stands at a breakpoint (interrupt_before or "
        "interrupt_after) of a graph inside its graph, and is not run through it. Go "
        "on with the graph's own ainvoke(None, config), or take the breakpoint out "
        "and put the tools behind ApprovalMiddleware.",
        is_announced=is_announced,
    )


def at_limit(thread: str, limit: str) -> ThreadHalted:
    """Return the error about a thread that a limit stopped before."""
    return ThreadHalted(
        f"The thread {thread!r} was stopped by {limit} and is not tried again by "
        "itself; give it a new message, or run it again with a higher limit.",
        is_announced=True,
    )


CALL_LIMITS = (ModelCallLimitExceededError, ToolCallLimitExceededError)
"""Limits of LangChain's middleware. It stands in front of the tools, so calls that were
submitted before it cannot run."""

_FINAL = (GraphRecursionError, *CALL_LIMITS, ThreadHalted)


def is_final(error: BaseException) -> bool:
    """Return True if the same step ends in the same error however often it is tried."""
    return isinstance(error, _FINAL)
