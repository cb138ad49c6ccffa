"""Serve the least that a click costs, in one process or in two."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from dataclasses import replace

from bench.ceiling import ceiling
from bench.serve import Name, Run, ServerSettings, serving
from twokey.bot.listening import shared_listener, url_of


def _one_script(settings: ServerSettings) -> AbstractAsyncContextManager[str]:
    return ceiling(settings.store_url, settings.signing_secret, replies=False)


def _one_script_and_reply(
    settings: ServerSettings,
) -> AbstractAsyncContextManager[str]:
    listener = socket.socket(fileno=int(settings.part)) if settings.part else None
    return ceiling(
        settings.store_url, settings.signing_secret, replies=True, listener=listener
    )


@asynccontextmanager
async def _two_of_one_script_and_reply(settings: ServerSettings) -> AsyncGenerator[str]:
    """Serve the least that replies in two processes that share a port."""
    async with AsyncExitStack() as opened:
        listener = opened.enter_context(shared_listener("127.0.0.1", 0))
        fd = listener.fileno()
        child = replace(settings, name="one_script_and_reply", part=str(fd))
        await asyncio.gather(
            *(opened.enter_async_context(serving(child, fds=[fd])) for _ in range(2))
        )
        yield url_of(*listener.getsockname()[:2])


RUNS: dict[Name, Run] = {
    "one_script": _one_script,
    "one_script_and_reply": _one_script_and_reply,
    "two_of_one_script_and_reply": _two_of_one_script_and_reply,
}
