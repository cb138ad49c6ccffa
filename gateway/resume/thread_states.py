"""Tell where a thread stands from what LangGraph says of its newest checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.types import Interrupt, PregelTask, StateSnapshot

from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.resume.runner import PendingInterrupt, ThreadState

INPUT_KEY = "twokey_input"
"""Checkpoint metadata: key of the input that the thread was last started with."""


def state_of(snapshot: StateSnapshot) -> ThreadState:
    """Return where a thread stands."""
    if snapshot.metadata is None:
        return ThreadState(exists=False)
    metadata = cast("Mapping[str, object]", snapshot.metadata)
    configurable = snapshot.config.get("configurable", {})
    return ThreadState(
        exists=True,
        pending=tuple(pending_of(one) for one in snapshot.interrupts),
        has_tasks=bool(snapshot.tasks),
        is_cut_off=_is_cut_off(snapshot),
        checkpoint=str(configurable.get("checkpoint_id", "")),
        taken=str(metadata.get(INPUT_KEY, "")),
        final_message=_final_message(snapshot.values),
    )


def _is_cut_off(snapshot: StateSnapshot) -> bool:
    """Return True if work is left that no answer would advance.

    Tasks that have all ended are such work, too: their process died before it wrote
    the checkpoint that follows from what they came to.
    """
    tasks = snapshot.tasks
    if not any(task.interrupts for task in tasks):
        return bool(tasks)
    return any(_waits_for_nobody(task, snapshot) for task in tasks)


def _waits_for_nobody(task: PregelTask, snapshot: StateSnapshot) -> bool:
    """Return True if a task has not ended and no answer would bring it forward.

    A result of None says nothing by itself: a task may end with it. Those that ended
    are no longer among the next ones.
    """
    has_ended = task.result is not None or task.name not in snapshot.next
    return not task.interrupts and not has_ended


def pending_of(interrupt: Interrupt) -> PendingInterrupt:
    """Return an open question as the worker reads it."""
    schema: object = interrupt.response_schema
    return PendingInterrupt(
        id=interrupt.id,
        value=interrupt.value,
        schema=cast("JsonObject", schema) if isinstance(schema, dict) else None,
    )


def _final_message(values: object) -> str:
    """Return the last text since the last person spoke: the model's, else a tool's."""
    if not isinstance(values, Mapping):
        return ""
    messages = cast("Mapping[str, object]", values).get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return ""
    from_a_tool = ""
    for message in reversed(cast("Sequence[object]", messages)):
        if not isinstance(message, BaseMessage) or isinstance(message, HumanMessage):
            break
        text = str(message.text).strip() or _refusal(message)
        if isinstance(message, AIMessage) and text:
            return text
        if isinstance(message, ToolMessage):
            # An agent may end with a tool's answer (return_direct).
            from_a_tool = from_a_tool or text
    return from_a_tool


def _refusal(message: BaseMessage) -> str:
    """Return OpenAI's refusal, which LangChain does not count as text; else ""."""
    found: list[object] = [message.additional_kwargs.get("refusal")]
    for block in message.content:
        if isinstance(block, dict):
            one = cast("Mapping[str, object]", block)
            inner = one.get("value")  # of a block in LangChain's own format
            if isinstance(inner, dict):
                one = cast("Mapping[str, object]", inner)
            found.append(one.get("refusal"))
    return "\n".join(one for one in found if isinstance(one, str)).strip()
