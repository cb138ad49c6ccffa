"""Let a model go on whose provider paused its turn.

Anthropic ends an answer with ``pause_turn`` when the tools that run on its servers take
long: the model has not finished, and goes on when it is sent its own answer. LangChain
takes an answer without calls for the last one of the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.messages.ai import add_usage

_MOST_PAUSES = 25
"""How often one turn may pause; a pause follows several calls of the provider's tools,
so a turn with more of them is taken for one that does not come to an end."""

Request = ModelRequest[Any]
Response = ModelResponse[Any]


def answer_of(request: Request, handler: Callable[[Request], Response]) -> Response:
    """Return the answer of a model, with all parts of a turn that paused."""
    answer = handler(request)
    for _ in range(_MOST_PAUSES):
        if not _is_paused(answer):
            break
        answer = _joined(answer, handler(_after(request, answer)))
    return answer


async def aanswer_of(
    request: Request, handler: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Return the answer of a model, with all parts of a turn that paused."""
    answer = await handler(request)
    for _ in range(_MOST_PAUSES):
        if not _is_paused(answer):
            break
        answer = _joined(answer, await handler(_after(request, answer)))
    return answer


def _is_paused(answer: Response) -> bool:
    last = answer.result[-1] if answer.result else None
    # One that calls a tool of the agent goes on once that has run.
    return (
        isinstance(last, AIMessage)
        and last.response_metadata.get("stop_reason") == "pause_turn"
        and not last.tool_calls
        and not last.invalid_tool_calls
    )


def _after(request: Request, answer: Response) -> Request:
    result = cast("list[AnyMessage]", answer.result)
    return request.override(messages=[*request.messages, *result])


def _joined(answer: Response, rest: Response) -> Response:
    """Return one answer of both, in one message as if there had been no pause."""
    paused = cast("AIMessage", answer.result[-1])
    first, *more = rest.result
    if isinstance(first, AIMessage):
        used = first.usage_metadata
        if paused.usage_metadata is not None:
            used = add_usage(paused.usage_metadata, used)
        content = [*_blocks(paused), *_blocks(first)]
        update = {"content": content, "usage_metadata": used}
        first = first.model_copy(update=update)
    return ModelResponse(
        result=[*answer.result[:-1], first, *more],
        structured_response=rest.structured_response,
    )


def _blocks(message: AIMessage) -> list[Any]:
    content = message.content
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [*content]
