"""Prepend reviewers' reasons and reconciliation notes to a call's tool message."""

from __future__ import annotations

from collections.abc import Callable

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage

from twokey.agent import messages, result_codec, tool_messages
from twokey.agent.result_codec import ToolResult
from twokey.gateway.protocol.wire import Answer, ReconcileAnswer


def with_reasons(
    request: ToolCallRequest, result: ToolResult, answer: Answer
) -> ToolResult:
    """Return the result with the reviewers' reasons for approving its call, if any.

    The result of a ``return_direct`` tool is shown to the user and stays as it is.
    """
    return _with_note(request, result, answer.why_approved)


def with_reconciliation_note(
    request: ToolCallRequest, result: ToolResult, reconciled: ReconcileAnswer | None
) -> ToolResult:
    """Return the result with the note of the people who reconciled its call.

    It is also marked, because the attempt that was in doubt may still report an end.
    """
    if reconciled is None:
        return result
    note = tool_messages.reconciliation_note(reconciled)
    return _with_note(request, result, note, messages.mark_reconciled)


def _with_note(
    request: ToolCallRequest,
    result: ToolResult,
    note: str,
    mark: Callable[[ToolMessage], ToolMessage] = lambda message: message,
) -> ToolResult:
    is_silent = request.tool is not None and request.tool.return_direct

    def change(message: ToolMessage) -> ToolMessage:
        # A handoff tool also returns the messages of other calls.
        if message.tool_call_id != request.tool_call["id"]:
            return message
        marked = mark(message)
        return messages.with_note(marked, note) if note and not is_silent else marked

    return result_codec.each_message(result, change)
