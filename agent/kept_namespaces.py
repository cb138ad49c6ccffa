"""Refuse agents that work side by side on the same kept state.

LangGraph keeps the state of a subgraph that is compiled with ``checkpointer=True``
under the name of its node, without the id of the task: so it has it again in the next
step. Two of them that one step runs side by side, in a node or in two tools, share
that place. Once one of them pauses for people, it goes on with what the other one left
there: it repeats the call of the other one, and its own is lost.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp

from twokey.agent import nesting
from twokey.gateway.errors import GraphError

_MOST_KNOWN = 1000


class SharedNamespace(GraphError, GraphBubbleUp):
    """Two agents share a state. No tool node catches it: a model cannot change it."""


class _Visit(NamedTuple):
    """Where in a thread an agent began to work.

    Attributes:
        path: of its task, with the ids of tasks.
        steps: the checkpoint of each graph around it, by namespace.
    """

    path: tuple[str, ...]
    steps: Mapping[str, str]

    def is_beside(self, other: _Visit) -> bool:
        """Return whether one step of a graph began both, in tasks of their own."""
        shared = 0
        for mine, theirs in zip(self.path, other.path, strict=False):
            if mine != theirs:
                break
            shared += 1
        if self.path == other.path:
            return False
        around = "|".join(self.path[:shared])
        step = self.steps.get(around)
        return step is not None and step == other.steps.get(around)


_visits: OrderedDict[tuple[str, str], _Visit] = OrderedDict()
_lock = threading.Lock()


def check() -> None:
    """Check that the agent that begins here shares its kept state with no other.

    Raises:
        SharedNamespace: when it would; this agent has done nothing yet.
    """
    config = cast("Mapping[str, Any]", get_config())
    configurable: Mapping[str, Any] = config.get("configurable", {})
    own, _, _ = str(configurable.get("checkpoint_ns", "")).rpartition("|")
    # LangGraph writes the first part of the namespace there before it removes the ids
    # of tasks. For an agent inside a tool, the gate around the tool knows the rest.
    path = str(config.get("metadata", {}).get("checkpoint_ns", ""))
    if (task := nesting.enclosing_task()).startswith(f"{path}|"):
        path = task
    if not own or ":" in own or not path:
        return
    visit = _Visit(tuple(path.split("|")), configurable.get("checkpoint_map", {}))
    key = (str(configurable.get("thread_id", "")), own)
    with _lock:
        if (other := _visits.get(key)) is not None and visit.is_beside(other):
            raise SharedNamespace(
                f"Two agents work side by side on one state, that of {own!r}: they are "
                "compiled with checkpointer=True, and LangGraph would mix up their "
                "calls. The second one did not begin. Compile them without it, call "
                "one at a time (ToolCallLimitMiddleware), or put each in a graph of "
                "its own with another name of its node."
            )
        _visits[key] = visit
        _visits.move_to_end(key)
        if len(_visits) > _MOST_KNOWN:
            _visits.popitem(last=False)
