"""A proxy between an agent and its gateway, which also receives the effect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import Any, Self

import httpx
from aiohttp import web

EFFECT = "/effect"
_KEPT = {
    "authorization",
    "content-type",
    "keyturn-lease",
    "keyturn-take-lease",
    "keyturn-clock-ahead",
}
_DROPPED = {"transfer-encoding", "connection", "server", "content-length"}


class Fate(StrEnum):
    """What becomes of a message that reaches a stage."""

    PASSED = "passed"
    DROPPED = "dropped"
    STALLED = "stalled"
    HALF = "half"


Act = Callable[[], Awaitable[Fate]]


class Between:
    """A network between an agent and its gateway, which sees their messages.

    ``acts`` are executed once, when a stage is reached: ``claim sent`` is before the
    gateway has the request, ``claim answered`` before the agent has the answer,
    ``running`` when the tool has had its effect and does not know it.

    Attributes:
        effects: effects of the tool, by thread.
        met: stages that were reached.
    """

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._opened = AsyncExitStack()
        self._is_over = asyncio.Event()
        self.acts: dict[tuple[str, str], Act] = {}
        self.effects: dict[str, list[dict[str, Any]]] = {}
        self.met: list[tuple[str, str]] = []
        self.before_effect: Callable[[str], Awaitable[None]] | None = None
        self.thread = ""
        self.url = ""

    async def __aenter__(self) -> Self:
        """Listen."""
        enter = self._opened.enter_async_context
        self._client = await enter(httpx.AsyncClient(base_url=self._gateway))
        runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.1)
        await runner.setup()
        self._opened.push_async_callback(runner.cleanup)
        self._opened.callback(self._is_over.set)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Close everything."""
        await self._opened.aclose()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if request.path == EFFECT:
            return await self._effect(request, json.loads(body))
        name = request.path.removeprefix("/v1/")
        if not await self._passes(request, await self._at(f"{name} sent")):
            return web.Response()
        headers = {k: v for k, v in request.headers.items() if k.lower() in _KEPT}
        try:
            reply = await self._client.request(
                request.method, request.path, content=body, headers=headers, timeout=90
            )
        except httpx.HTTPError:
            return _hung_up(request)
        fate = Fate.PASSED
        if name != "answers" or reply.content != b"[]":
            fate = await self._at(f"{name} answered")
        kept = {k: v for k, v in reply.headers.items() if k.lower() not in _DROPPED}
        if fate is Fate.HALF:
            return await _half(request, reply.content, kept)
        if not await self._passes(request, fate):
            return web.Response()
        return web.Response(body=reply.content, status=reply.status_code, headers=kept)

    async def _effect(
        self, request: web.BaseRequest, said: dict[str, Any]
    ) -> web.StreamResponse:
        if self.before_effect is not None:
            await self.before_effect(said["thread"])
        self.effects.setdefault(said["thread"], []).append(said)
        await self._passes(request, await self._at("running"))
        return web.Response(text=f"paid {said['amount']:.0f}")

    async def _at(self, stage: str) -> Fate:
        place = (self.thread, stage)
        self.met.append(place)
        act = self.acts.pop(place, None)
        return Fate.PASSED if act is None else await act()

    async def _passes(self, request: web.BaseRequest, fate: Fate) -> bool:
        if fate is Fate.STALLED:
            # Until the waiting side gives up, or the test is over.
            await self._is_over.wait()
        if fate is not Fate.PASSED:
            _hung_up(request)
        return fate is Fate.PASSED


def _hung_up(request: web.BaseRequest) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _half(
    request: web.BaseRequest, body: bytes, headers: dict[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    return _hung_up(request)
