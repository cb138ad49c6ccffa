"""A local server that answers like OpenAI's chat API, for models named in the docs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Message = dict[str, Any]


def calls(name: str, args: dict[str, Any]) -> Message:
    """Return a message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(args)}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def says(text: str) -> Message:
    """Return a message of words."""
    return {"role": "assistant", "content": text}


@asynccontextmanager
async def chat_server(replies: Sequence[Message]) -> AsyncGenerator[str]:
    """Serve these messages, one a request, the last one for ever; yield the address."""
    left = list(replies)

    async def answer(_request: web.Request) -> web.Response:
        message = left.pop(0) if len(left) > 1 else left[0]
        kind = "tool_calls" if "tool_calls" in message else "stop"
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "local",
            "choices": [{"index": 0, "message": message, "finish_reason": kind}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        return web.json_response(body)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/v1"))
