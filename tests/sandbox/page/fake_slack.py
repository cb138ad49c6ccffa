"""Serve the page with canned states and record people's actions on it.

It does not know Slack's rules, so a failure here is a failure of the page.
"""

import asyncio
import json
import threading
from collections import deque
from copy import deepcopy
from types import TracebackType
from typing import Any, Self, TypeAlias

from aiohttp import web

from keyturn.sandbox.page_api import PAGE, SECURITY_HEADERS

Json: TypeAlias = dict[str, Any]


class FakeSlack:
    """A server in a separate thread; use it with `with`.

    `state` is served to the page, for every user, until `show` replaces it; `acts` are
    the page's actions, and `told` is the `seq` that it got last; `answers` are given to
    the next acts, then `{"ok": True}`. After `hold`, acts wait until `let_go`.
    """

    def __init__(self, state: Json) -> None:
        self.state = state
        self.acts: list[Json] = []
        self.told = 0  # the newest state a page was given
        self.answers: deque[Json] = deque()
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._free = asyncio.Event()
        self._free.set()
        self._news: set[asyncio.Event] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def show(self, **changes: Any) -> None:
        """Change members of the state and notify every open page."""
        self.state = {**self.state, **changes, "seq": self.state["seq"] + 1}
        self._loop.call_soon_threadsafe(self._ring)

    def hold(self) -> None:
        """Make the next acts wait."""
        self._loop.call_soon_threadsafe(self._free.clear)

    def let_go(self) -> None:
        """Answer the acts that wait."""
        self._loop.call_soon_threadsafe(self._free.set)

    def did(self, kind: str) -> list[Json]:
        """Return the acts of one type."""
        return [act for act in self.acts if act["type"] == kind]

    def _ring(self) -> None:
        for news in self._news:
            news.set()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/", self._index)
        app.router.add_get("/static/{name}", self._static)
        app.router.add_get("/sandbox/state", self._state)
        app.router.add_get("/sandbox/events", self._events)
        app.router.add_post("/sandbox/act", self._act)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        self._closing = True
        self._free.set()
        self._ring()
        await self._runner.cleanup()

    async def _index(self, request: web.Request) -> web.FileResponse:
        return web.FileResponse(PAGE / "index.html", headers=SECURITY_HEADERS)

    async def _static(self, request: web.Request) -> web.FileResponse:
        path = PAGE / request.match_info["name"]
        return web.FileResponse(path, headers=SECURITY_HEADERS)

    async def _state(self, request: web.Request) -> web.Response:
        state = deepcopy(self.state)
        wanted = request.query.get("user", state["me"]["id"])
        known = {user["id"]: user for user in state["users"]}
        if wanted not in known:
            return web.json_response(
                {"ok": False, "error": "user_not_found"}, status=400
            )
        state["me"] = known[wanted]
        self.told = state["seq"]
        return web.json_response(state, headers=SECURITY_HEADERS)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        news = asyncio.Event()
        self._news.add(news)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            while not self._closing:
                line = json.dumps({"seq": self.state["seq"]})
                await response.write(f"data: {line}\n\n".encode())
                await news.wait()
                news.clear()
        except ConnectionError:
            return response
        finally:
            self._news.discard(news)
        return response

    async def _act(self, request: web.Request) -> web.Response:
        self.acts.append(await request.json())
        await self._free.wait()
        answer = self.answers.popleft() if self.answers else {"ok": True}
        return web.json_response(answer, headers=SECURITY_HEADERS)
