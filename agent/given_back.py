"""Give back what a call returned that ran before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AnyMessage

from twokey.agent import results, tool_messages
from twokey.agent.cleaning import cleaned
from twokey.agent.results import ToolResult
from twokey.gateway.protocol.records import EditRecord, Result


def given_back(
    call: Any,  # noqa: ANN401 - a ToolCall; its TypedDict comes in two spellings
    result: Result,
    history: Sequence[AnyMessage],
) -> tuple[ToolResult, list[EditRecord]]:
    """Return a stored result as the tool returned it, or say that it is lost."""
    found = results.restored(result.payload)
    if found is not None:
        return cleaned(found[0], history), found[1]
    return tool_messages.told(
        call, tool_messages.lost(result), is_error=not result.ok
    ), []
