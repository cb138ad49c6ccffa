"""Serve Bolt with one listener that does nothing but acknowledge."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from slack_bolt.app.async_app import AsyncApp
from slack_sdk.web.async_client import AsyncWebClient

from bench.serve import Name, Run, ServerSettings
from twokey.bot.ids import Action
from twokey.bot.ingress import EVENTS_PATH


@asynccontextmanager
async def _bolt(settings: ServerSettings) -> AsyncGenerator[str]:
    """Serve Bolt as its documentation shows it, with a listener that only answers."""
    # Bolt is typed in part only.
    app: Any = AsyncApp(
        client=AsyncWebClient(token=settings.bot_token, base_url=settings.api_url),
        signing_secret=settings.signing_secret,
    )

    async def acknowledge(ack: Callable[[], Awaitable[object]]) -> None:
        await ack()

    app.action(Action.APPROVE.value)(acknowledge)
    runner = web.AppRunner(app.server(path=EVENTS_PATH).web_app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{EVENTS_PATH}"
    finally:
        await runner.cleanup()


RUNS: dict[Name, Run] = {"bolt": _bolt}
