"""A scripted model behind the Messages API of Anthropic, on loopback.

It answers each request that offers tools by the next step of its script: tool calls or
a text, and "Done." at the end. Other requests, such as for a title, get a text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Call = tuple[str, dict[str, Any]]
"""A tool and its input."""


@dataclass
class FakeModel:
    """A model that plays a script.

    Attributes:
        script: for each turn, the tool calls, or a text that ends it.
        asked: the messages of each request that offered tools.
        was_asked: set when another request has come.
    """

    script: list[Sequence[Call] | str]
    asked: list[list[dict[str, Any]]] = field(default_factory=list[Any])
    url: str = ""
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)

    def inputs(self) -> str:
        """Return what the model has read since its last turn, as JSON."""
        messages = self.asked[-1]
        last = max(at for at, one in enumerate(messages) if one["role"] == "assistant")
        return json.dumps(messages[last + 1 :], ensure_ascii=False)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body: dict[str, Any] = await request.json() if request.can_read_body else {}
        if "count_tokens" in request.path:
            return web.json_response({"input_tokens": 1})
        if not request.path.endswith("/messages"):
            return web.json_response({})
        step: Sequence[Call] | str = "ok"
        if body.get("tools"):
            self.asked.append(body["messages"])
            self.was_asked.set()
            step = self.script[len(self.asked) - 1] if self._is_next else "Done."
        if not body.get("stream"):
            return web.json_response(_message(step, len(self.asked)))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in _events(_message(step, len(self.asked))):
            line = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            await response.write(line.encode())
        return response

    @property
    def _is_next(self) -> bool:
        return len(self.asked) <= len(self.script)


def _message(step: Sequence[Call] | str, turn: int) -> dict[str, Any]:
    is_text = isinstance(step, str)
    content = (
        [{"type": "text", "text": step}]
        if is_text
        else [
            {
                "type": "tool_use",
                "id": f"toolu_{turn:02}{at}",
                "name": name,
                "input": it,
            }
            for at, (name, it) in enumerate(step)
        ]
    )
    return {
        "id": f"msg_{turn:02}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": content,
        "stop_reason": "end_turn" if is_text else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return a message as the events of a stream."""
    begun: dict[str, Any] = {**message, "content": [], "stop_reason": None}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(message["content"]):
        is_text = block["type"] == "text"
        empty: dict[str, Any] = (
            {**block, "text": ""} if is_text else {**block, "input": {}}
        )
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if is_text
            else {
                "type": "input_json_delta",
                "partial_json": json.dumps(block["input"]),
            }
        )
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
    yield {"type": "message_stop"}


@asynccontextmanager
async def playing(*script: Sequence[Call] | str) -> AsyncGenerator[FakeModel]:
    """Serve a model on loopback while the block runs."""
    model = FakeModel(list(script))
    app = web.Application(client_max_size=64 * 1024**2)
    app.router.add_route("*", "/{path:.*}", model.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    model.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield model
    finally:
        await runner.cleanup()
