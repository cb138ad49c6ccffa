"""Recognise threads that an older version left at a step that graphs no longer have.

`ApprovalMiddleware` once submitted a turn in a step of its own, ``after_model``
(docs/decisions/0012). LangGraph silently ends a thread whose next step its graph does
not have. The last message of such a thread calls tools, and what was said of these
calls is not kept. That message is removed and the model asked again; what was opened
for it is superseded by the next turn.

Only the outermost graph is looked at: an agent inside a tool that was left there ends
with its last text, and its calls do not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import StateSnapshot

BEFORE_MODEL = "ApprovalMiddleware.before_agent"
"""The step after which the model is asked."""

_STEP = "branch:to:ApprovalMiddleware.after_model"
"""LangGraph's channel that holds something when this step is the next one (private)."""


def unanswered(snapshot: StateSnapshot) -> str | None:
    """Return the id of a thread's last message if it calls tools and nothing is left.

    That may be a thread at the former step, and a look at its checkpoint tells.
    """
    if snapshot.tasks or not isinstance(cast("object", snapshot.values), Mapping):
        return None
    values = cast("Mapping[str, object]", snapshot.values)
    messages = values.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        return None
    last = cast("Sequence[object]", messages)[-1]
    return last.id if isinstance(last, AIMessage) and last.tool_calls else None


def is_at(found: CheckpointTuple | None) -> bool:
    """Return whether a checkpoint stands at the former step."""
    return found is not None and _STEP in found.checkpoint["channel_values"]
