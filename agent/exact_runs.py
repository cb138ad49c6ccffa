"""Run a cleared call with exactly the arguments that were cleared, or refuse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from langchain.agents.middleware.types import ToolCallRequest

from twokey.agent import prepared_calls, repeats, tool_messages, turns
from twokey.agent.grants import share_guarded
from twokey.agent.result_cleanup import clean_result
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
        # Once more, right before the run: a new version of the program may read the
        # same arguments in another way than when people were asked.
        tool = prepared_calls.runnable(request.tool_call["name"], request.tool, args)
        exact = with_args(request, args).override(tool=share_guarded(tool))
        return clean_result(await run(exact), request.state["messages"])
    except NotAllowed as error:
        return repeats.mark_uncleared(
            tool_messages.message_for(request.tool_call, str(error))
        )


def unchecked_problem(
    state: Mapping[str, Any], request: ToolCallRequest, args: JsonObject
) -> str:
    """Return why people are not asked about a call whose tool was known too late."""
    if not turns.is_unread(state, request.tool_call):
        return ""
    try:
        prepared_calls.runnable(request.tool_call["name"], request.tool, args)
    except NotAllowed as error:
        return str(error)
    return ""
