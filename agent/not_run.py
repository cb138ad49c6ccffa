"""Build the tool message of a call that did not run, and route it to the model."""

from __future__ import annotations

from typing import Any, cast

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command

from twokey.agent import circuit_breaker, tool_messages, turns
from twokey.agent.result_codec import ToolResult
from twokey.gateway.protocol.wire import Verdict, VerdictKind


def denied(request: ToolCallRequest, verdict: Verdict) -> ToolResult:
    """Return the tool message of a call that its verdict denies."""
    reason = verdict.reason if verdict.kind is VerdictKind.DENY else ""
    text = tool_messages.denial_text(reason or turns.NO_VERDICT)
    return result(request, text, is_counted=text in turns.UNCLEARED)


def not_requested(request: ToolCallRequest) -> ToolResult:
    """Return the tool message of a call that no message requests by its id."""
    text = turns.NO_VERDICT if request.tool_call["id"] else turns.NO_ID
    return result(request, text, is_counted=True)


def result(
    request: ToolCallRequest, text: str, item_id: str = "", *, is_counted: bool = False
) -> ToolResult:
    """Return the message of a call that did not run; the breaker may count it."""
    message = tool_messages.message_for(request.tool_call, text, item_id=item_id)
    if is_counted:
        message = circuit_breaker.mark_uncleared(message)
    return to_model(request, message)


def to_model(request: ToolCallRequest, message: ToolMessage) -> ToolResult:
    """Return the message of a call that did not run, so that the model reads it.

    After a turn of only ``return_direct`` tools the agent would end here, before the
    model could read why the call did not run.
    """
    if request.tool is None or not request.tool.return_direct:
        return message
    runtime = cast("ToolRuntime[Any, Any]", cast("Any", request).runtime)
    by_name = {tool.name: tool for tool in runtime.tools}
    asking = turns.requesting_message(request.state, request.tool_call["id"] or "")
    siblings = [] if asking is None else asking.tool_calls
    if all(
        call["name"] in by_name and by_name[call["name"]].return_direct
        for call in siblings
    ):
        return Command(goto="model", update={"messages": [message]})
    return message
