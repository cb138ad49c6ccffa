"""Invoke a tool with exactly the approved or auto-approved arguments, or refuse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from langchain.agents.middleware.types import ToolCallRequest

from twokey.agent import (
    circuit_breaker,
    middleware_order,
    prepared_calls,
    result_codec,
    tool_messages,
    turns,
)
from twokey.agent.grants import share_guarded
from twokey.agent.result_codec import ToolResult
from twokey.agent.result_sanitizer import clean_result
from twokey.gateway.errors import NotAllowed
from twokey.gateway.protocol.strict_json import JsonObject

Handler = Callable[[ToolCallRequest], Awaitable[ToolResult]]


def with_args(request: ToolCallRequest, args: JsonObject) -> ToolCallRequest:
    """Return the request with these arguments."""
    call = {**request.tool_call, "args": args}
    return request.override(tool_call=cast("Any", call))


async def invoke(
    request: ToolCallRequest, run: Handler, args: JsonObject
) -> ToolResult:
    """Invoke the tool with exactly these arguments; return a refusal as its message.

    The tool is passed on guarded: when a middleware that is listed after ours changes
    the arguments, the tool does not run.
    """
    try:
        # Checked again right before the run: a new version of the program may parse the
        # same arguments differently than when people decided.
        tool = prepared_calls.runnable(request.tool_call["name"], request.tool, args)
        call = cast("Any", {**request.tool_call, "args": args})
        exact = request.override(tool_call=call, tool=share_guarded(tool))
        result = await run(exact)
        if not result_codec.went_well(result):
            middleware_order.warn_about_retries(run)
        return clean_result(result, request.state["messages"])
    except NotAllowed as error:
        middleware_order.warn_about_retries(run)
        # Not raised: the tool node would end the run, and the model could not correct
        # its call.
        return circuit_breaker.mark_uncleared(
            tool_messages.message_for(request.tool_call, str(error))
        )


def late_tool_problem(
    state: Mapping[str, Any], request: ToolCallRequest, args: JsonObject
) -> str:
    """Return why a call whose tool was unknown at submission must not be asked about.

    Its arguments were submitted uncanonicalized; "" when they are canonical anyway.
    """
    if not turns.is_unchecked(state, request.tool_call):
        return ""
    try:
        prepared_calls.runnable(request.tool_call["name"], request.tool, args)
    except NotAllowed as error:
        return str(error)
    return ""
