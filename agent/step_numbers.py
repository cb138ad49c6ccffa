"""Count how often a node's body has reached a step, to number repeated steps.

LangGraph runs a body again from its start after each pause, and counts its own
interrupts the same way. A new run, and a retry by the node's retry policy, begin again
with 1, so that a step has the same number every time its body comes to it.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from langgraph.config import get_config

_SCRATCHPAD = "__pregel_scratchpad"
_RUNTIME = "__pregel_runtime"
"""What LangGraph keeps of a task that runs, and of its present attempt (private)."""

_lock = threading.Lock()
_counts: WeakKeyDictionary[object, tuple[int, int]] = WeakKeyDictionary()


def next_number() -> int:
    """Return how often this attempt of the running task asked, this time included."""
    configurable: dict[str, Any] = get_config().get("configurable", {})
    scratchpad: Any = configurable.get(_SCRATCHPAD)
    # A closure that LangGraph makes per run of the body. The scratchpad itself has
    # slots and takes no weak reference.
    body = getattr(scratchpad, "get_null_resume", None)
    if body is None:
        return 1
    attempt = _attempt(configurable)
    with _lock:
        last, count = _counts.get(body, (attempt, 0))
        count = count + 1 if last == attempt else 1
        _counts[body] = (attempt, count)
    return count


def _attempt(configurable: dict[str, Any]) -> int:
    info: Any = getattr(configurable.get(_RUNTIME), "execution_info", None)
    return int(getattr(info, "node_attempt", 1))
