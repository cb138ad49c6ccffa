"""A scripted model behind the Responses API of OpenAI, on loopback."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.connect.coding_agents.fake_model import Call


@dataclass
class FakeResponses:
    """A model that makes one call in each turn, and then ends.

    Attributes:
        script: the calls.
        asked: the input of each request.
    """

    script: list[Call]
    asked: list[list[dict[str, Any]]] = field(default_factory=list[Any])
    url: str = ""

    def inputs(self) -> str:
        """Return the results of all calls, as JSON."""
        outputs = [one for one in self.asked[-1] if "output" in str(one.get("type"))]
        return json.dumps(outputs, ensure_ascii=False)

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one request."""
        if request.method != "POST":
            return web.json_response({"data": [], "models": []})
        self.asked.append((await request.json())["input"])
        turn = len(self.asked)
        item: dict[str, Any] = {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Done."}],
        }
        if turn <= len(self.script):
            name, arguments = self.script[turn - 1]
            item = {
                "type": "function_call",
                "call_id": f"call_{turn}",
                "name": name,
                "arguments": json.dumps(arguments),
            }
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        ended = {"id": f"resp_{turn}", "usage": usage}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {"id": f"resp_{turn}"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": ended},
        ]
        text = "".join(
            f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events
        )
        return web.Response(text=text, content_type="text/event-stream")


@asynccontextmanager
async def responding(*script: Call) -> AsyncGenerator[FakeResponses]:
    """Serve a model on loopback while the block runs."""
    model = FakeResponses(list(script))
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
