"""A web application with a gateway in its process.

One request starts a thread; later requests use its id. Open one ``Keyturn`` when the
program starts, and pass it to ``make_app``.
"""

from __future__ import annotations

import contextlib

from aiohttp import web

from examples.support_agent import graph  # name your own here
from keyturn import Keyturn

TK = web.AppKey("keyturn", Keyturn)


async def ask(request: web.Request) -> web.Response:
    """Give the text to the agent, and show the state of its thread."""
    messages = [("user", (await request.json())["text"])]
    given, thread = {"messages": messages}, request.match_info["id"]
    # On a timeout people have to decide, or the model is slow: the thread goes on.
    with contextlib.suppress(TimeoutError):
        await request.app[TK].run(
            graph, given, thread_id=thread, agent="support", timeout_s=1
        )
    return await show(request)


async def show(request: web.Request) -> web.Response:
    """Show the calls that wait for people, or the agent's last message."""
    tk, thread = request.app[TK], request.match_info["id"]
    waiting = await tk.pending(thread_id=thread, agent="support")
    said = None
    if not waiting:
        # On a timeout the agent is still at work: ask again.
        with contextlib.suppress(TimeoutError):
            final = await tk.wait(graph, thread_id=thread, agent="support", timeout_s=1)
            said = final["messages"][-1].text
    calls = [{"tool": call.tool, "until": str(call.expires_at)} for call in waiting]
    return web.json_response({"waiting": calls, "said": said})


def make_app(tk: Keyturn) -> web.Application:
    """Return the application on an open gateway."""
    app = web.Application()
    app[TK] = tk
    app.add_routes([web.post("/orders/{id}", ask), web.get("/orders/{id}", show)])
    return app
