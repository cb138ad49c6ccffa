"""Add the reviewers' reasons for an authorized call to its result, for the model."""

from __future__ import annotations

from collections.abc import Callable

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage

from twokey.agent import messages, results, tool_messages
from twokey.agent.results import ToolResult
from twokey.gateway.protocol.wire import Answer, ReconcileAnswer


def with_reasons(
    request: ToolCallRequest, result: ToolResult, answer: Answer
) -> ToolResult:
    """Return a result that says why people approved its call, if they said so.

    What a user sees directly (``return_direct``) stays as the tool returned it.
    """
    return _with_note(request, result, answer.why_approved)


def with_settlement(
    request: ToolCallRequest, result: ToolResult, settled: ReconcileAnswer | None
) -> ToolResult:
    """Return a result with the note of those who settled a doubt about its call.

    It is marked too: the attempt that was in doubt may still be reported.
    """
    if settled is None:
        return result
    note = tool_messages.settlement_note(settled)
    return _with_note(request, result, note, messages.mark_settled)


def _with_note(
    request: ToolCallRequest,
    result: ToolResult,
    note: str,
    mark: Callable[[ToolMessage], ToolMessage] = lambda message: message,
) -> ToolResult:
    is_silent = request.tool is not None and request.tool.return_direct

    def told(message: ToolMessage) -> ToolMessage:
        if message.tool_call_id != request.tool_call["id"]:
            return message
        marked = mark(message)
        return messages.with_note(marked, note) if note and not is_silent else marked

    return results.each_message(result, told)
