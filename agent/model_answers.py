"""Parse the model's answer before LangGraph adds it to the agent's state."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from langchain.agents.middleware.types import AgentState, ModelResponse
from langchain_core.messages import AIMessage, ToolCall

from keyturn.agent.canonical import plain
from keyturn.agent.prepared_calls import (
    NO_KEPT,
    CanonicalArgs,
    PreparedCall,
    Toolbox,
    prepare_calls,
)
from keyturn.gateway.errors import BadJson

CUT_OFF = (
    "Your answer reached its token limit within or after this call, so its arguments "
    "may be cut off, and it did not run. Make the call again, in a shorter answer."
)
BROKEN_OFF = (
    "Your answer broke off within or after this call, so its arguments may be cut off, "
    "and it did not run. If it is still needed, make it again."
)
UNREADABLE = (
    "The arguments of this call are not a JSON object, so it did not run and no "
    "approval was requested. If it is still needed, make it again with a JSON object."
)
UNREADABLE_KEY = "keyturn_unreadable"
"""The key, in a model message, of the texts for calls with unreadable arguments."""

_LIMITS = frozenset(
    {"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"}
)
_FILTERS = frozenset(  # OpenAI, Anthropic, Bedrock
    {"content_filter", "refusal", "content_filtered", "guardrail_intervened"}
)
# OpenAI and Gemini, Anthropic, Bedrock, Ollama, OpenAI's responses.
_REASONS = ("finish_reason", "stop_reason", "stopReason", "done_reason", "status")
_ALWAYS_SAY_WHY = frozenset({"openai", "anthropic"})
"""Providers that always report why an answer ended, unless the stream broke off."""


def after(state: AgentState[Any], answer: ModelResponse[Any]) -> AgentState[Any]:
    """Return an agent's state with the model's answer among its messages."""
    members = cast("Mapping[str, Any]", state)
    messages = [*members["messages"], *answer.result]
    return cast("AgentState[Any]", {**members, "messages": messages})


def with_ids(answer: ModelResponse[Any]) -> ModelResponse[Any]:
    """Return an answer in which all AI messages and all their calls have ids.

    A turn is submitted and stored under the id of its message, and verdicts are found
    by call id. A call without an id could not be answered either: providers would
    refuse the history from then on.
    """
    result = [
        _with_ids(message) if isinstance(message, AIMessage) else message
        for message in answer.result
    ]
    is_changed = any(a is not b for a, b in zip(result, answer.result, strict=True))
    return replace(answer, result=result) if is_changed else answer


def _with_ids(message: AIMessage) -> AIMessage:
    update: dict[str, Any] = {}
    if message.id is None:
        update["id"] = str(uuid.uuid4())
    for name in ("tool_calls", "invalid_tool_calls"):
        calls: Sequence[Any] = getattr(message, name)
        if not all(call["id"] for call in calls):
            update[name] = [
                call if call["id"] else {**call, "id": f"call_{uuid.uuid4().hex}"}
                for call in calls
            ]
    return message.model_copy(update=update) if update else message


def with_unreadable_calls(
    answer: ModelResponse[Any], tools: Toolbox
) -> ModelResponse[Any]:
    """Return an answer in which calls with unreadable arguments have empty ones.

    LangChain separates calls whose arguments are not a JSON object. If there are no
    others, it ends the run, and the model never learns of the problem. It accepts a
    lone surrogate or a NaN as an argument, but no provider accepts them back, so every
    later request of the thread would fail. None of these calls runs.
    """
    result = [
        _with_unreadable(message, tools) if isinstance(message, AIMessage) else message
        for message in answer.result
    ]
    return replace(answer, result=result)


def _with_unreadable(message: AIMessage, tools: Toolbox) -> AIMessage:
    # Another name may belong to a structured response, which LangChain parses itself.
    apart = [one for one in message.invalid_tool_calls if one["name"] in tools]
    problems = [_problem(call["args"]) for call in message.tool_calls]
    if not apart and not any(problems):
        return message
    calls: list[ToolCall] = []
    unread = {one["id"] or "": UNREADABLE for one in apart}
    for call, problem in zip(message.tool_calls, problems, strict=True):
        calls.append({**call, "args": {}} if problem else call)
        if problem:
            unread[call["id"] or ""] = problem
    for one in apart:
        name = one["name"] or ""
        calls.append(ToolCall(name=name, args={}, id=one["id"], type="tool_call"))
    rest = [one for one in message.invalid_tool_calls if one not in apart]
    return message.model_copy(
        update={
            "tool_calls": calls,
            "invalid_tool_calls": rest,
            "additional_kwargs": {**message.additional_kwargs, UNREADABLE_KEY: unread},
        }
    )


def _problem(args: Mapping[str, Any]) -> str:
    """Return why provider clients cannot serialize arguments; "" if they can."""
    try:
        json.dumps(args, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        try:
            plain(args)
        except BadJson as error:
            return f"{error} So this call did not run."
    return ""


def prepare_answer(
    message: AIMessage,
    calls: Sequence[ToolCall],
    tools: Toolbox,
    kept: Mapping[str, CanonicalArgs] = NO_KEPT,
) -> Mapping[str, PreparedCall]:
    """Prepare the open calls of a message; a call that was cut off gets a problem.

    LangChain completes the JSON of a streamed call that breaks off: an amount of 899
    may become 8. Calls are streamed one after the other, so all before the last one are
    complete.
    """
    ready = prepare_calls(calls, tools, kept)
    unread: dict[str, str] = message.additional_kwargs.get(UNREADABLE_KEY) or {}
    read = [call["id"] or "" for call in message.tool_calls if call["id"] not in unread]
    # If the last call is unreadable, the one before it is refused as well: LangChain
    # does not preserve their order.
    if read and read[-1] in ready and (problem := _cut_off_by(message)):
        ready[read[-1]] = replace(ready[read[-1]], problem=problem)
    for call_id in unread.keys() & ready.keys():
        ready[call_id] = replace(ready[call_id], refusal=unread[call_id])
    return ready


def is_cut_off(message: AIMessage) -> bool:
    """Return True if a model's answer broke off, perhaps within its last call.

    The answer may look complete: LangChain completes the JSON of a streamed call.
    `ApprovalMiddleware` checks this itself; a custom node that reads a model's answer
    has to call this function.
    """
    return bool(_cut_off_by(message))


def _cut_off_by(message: AIMessage) -> str:
    """Return the text about an answer that broke off; "" if it is complete."""
    about = cast("Mapping[str, object]", message.response_metadata)
    said = {str(about[name]).lower() for name in _REASONS if about.get(name)}
    details = about.get("incomplete_details")
    if isinstance(details, Mapping):  # OpenAI's responses
        said.add(str(cast("Mapping[str, object]", details).get("reason")).lower())
    if said & _LIMITS:
        return CUT_OFF
    is_unsaid = not said and about.get("model_provider") in _ALWAYS_SAY_WHY
    is_stopped = bool(said & _FILTERS) or "incomplete" in said
    return BROKEN_OFF if is_unsaid or is_stopped else ""
