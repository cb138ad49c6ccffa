"""Run a cleared call with exactly the arguments that were cleared, or refuse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from langchain.agents.middleware.types import ToolCallRequest

from twokey.agent import proposing, repeats, tool_messages, turns
from twokey.agent.cleaning import cleaned
from twokey.agent.grants import guarding
from twokey.agent.results import ToolResult
from twokey.gateway.errors import NotAllowed
from twokey.gateway.protocol.strict_json import JsonObject

Handler = Callable[[ToolCallRequest], Awaitable[ToolResult]]


def with_args(request: ToolCallRequest, args: JsonObject) -> ToolCallRequest:
    """Return a request with other arguments."""
    call = {**request.tool_call, "args": args}
    return request.override(tool_call=cast("Any", call))


async def run_exactly(
    request: ToolCallRequest, run: Handler, args: JsonObject
) -> ToolResult:
    """Run a cleared call with exactly these arguments, or say why it does not run.

    The tool is handed on guarded: a middleware that is listed after ours and changes
    the arguments gets no run for them.
    """
    try:
        tool = proposing.runnable(request.tool_call["name"], request.tool, args)
        exact = with_args(request, args).override(tool=guarding(tool))
        return cleaned(await run(exact), request.state["messages"])
    except NotAllowed as error:
        return repeats.marked(tool_messages.told(request.tool_call, str(error)))


def unread(state: Mapping[str, Any], request: ToolCallRequest, args: JsonObject) -> str:
    """Return why people are not asked about a call whose tool was known too late."""
    if not turns.is_unread(state, request.tool_call):
        return ""
    try:
        proposing.runnable(request.tool_call["name"], request.tool, args)
    except NotAllowed as error:
        return str(error)
    return ""
