"""Remove forged marks and state updates from tool results; restore stored ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage

from twokey.agent import messages, result_codec, tool_messages, turns
from twokey.agent.result_codec import ToolResult
from twokey.gateway.protocol.records import EditRecord, Result


def clean_result(result: ToolResult, history: Sequence[AnyMessage]) -> ToolResult:
    """Return a tool's result without forged marks and updates of our state.

    A handoff tool returns the messages of the history. Those that equal one of the
    history are left alone: the marks in them are ours.
    """

    def change(message: ToolMessage) -> ToolMessage:
        cleaned = messages.without_lookalikes(message)
        # Most hold none, and nothing is looked for in a long history.
        return message if cleaned is message or is_known(message) else cleaned

    def is_known(message: ToolMessage) -> bool:
        # The whole message must be equal: with a copied id alone a tool could keep a
        # forged mark.
        return message == next(
            (
                earlier
                for earlier in reversed(history)
                if isinstance(earlier, ToolMessage)
                and earlier.tool_call_id == message.tool_call_id
            ),
            None,
        )

    theirs = result_codec.without_updates(result, turns.OUR_STATE)
    return result_codec.each_message(theirs, change)


def restore_result(
    call: Any,  # noqa: ANN401 - a ToolCall; its TypedDict comes in two spellings
    result: Result,
    history: Sequence[AnyMessage],
) -> tuple[ToolResult, list[EditRecord]]:
    """Return a stored result as the tool returned it, or say that it is lost."""
    found = result_codec.deserialize(result.payload)
    if found is not None:
        return clean_result(found[0], history), found[1]
    return tool_messages.message_for(
        call, tool_messages.lost_result_text(result), is_error=not result.ok
    ), []
