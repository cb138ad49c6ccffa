"""Tell the model why people approved a call, before the call's result."""

from __future__ import annotations

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage

from gateway.agent import messages, results
from gateway.agent.results import ToolResult
from gateway.wire import Answer, AnswerKind


def with_reasons(
    request: ToolCallRequest, result: ToolResult, answer: Answer
) -> ToolResult:
    """Return a result that says why people approved its call, if they said so.

    What a user sees directly (``return_direct``) stays as the tool returned it.
    """
    is_silent = request.tool is not None and request.tool.return_direct
    if answer.type is not AnswerKind.APPROVE or not answer.message or is_silent:
        return result

    def told(message: ToolMessage) -> ToolMessage:
        if message.tool_call_id != request.tool_call["id"]:
            return message
        return messages.with_note(message, answer.message)

    return results.each_message(result, told)
