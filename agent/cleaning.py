"""Clean what a tool returned of everything that only the gateway's side may say."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AnyMessage, ToolMessage

from twokey.agent import messages, results, turns
from twokey.agent.results import ToolResult


def cleaned(result: ToolResult, history: Sequence[AnyMessage]) -> ToolResult:
    """Return what a tool returned without look-alikes and without state of ours.

    A handoff tool returns the messages of the history. Those that stand in it word for
    word are left alone: what was said in them under our mark is ours.
    """
    known = {
        message.tool_call_id: message
        for message in history
        if isinstance(message, ToolMessage)
    }

    def change(message: ToolMessage) -> ToolMessage:
        if message == known.get(message.tool_call_id):
            return message
        return messages.without_lookalikes(message)

    theirs = results.without_updates(result, turns.OUR_STATE)
    return results.each_message(theirs, change)
