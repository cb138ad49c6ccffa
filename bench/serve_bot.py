"""Serve our bot: whole, or in two processes that answer and one that publishes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory

from bench.clicks import POLICY, bot_config
from bench.serve import Name, Run, ServerSettings, serving
from bench.store_secrets import SECRETS
from twokey.bot.app import SlackBot
from twokey.bot.listening import shared_listener, url_of
from twokey.bot.worker import WHOLE, Part, Worker, prepare_process
from twokey.gateway.service.reading_ahead import MOST
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.store import Store

_START_S = 120.0
_LOOK_S = 0.05


@asynccontextmanager
async def _twokey(settings: ServerSettings) -> AsyncGenerator[str]:
    """Serve our bot, whole: ingress, listeners, publisher."""
    store = Store(settings.store_url, secrets=SECRETS)
    config = bot_config(
        bot_token=settings.bot_token,
        signing_secret=settings.signing_secret,
        api_url=settings.api_url,
    )
    worker = _worker_of(settings.part) if settings.part else WHOLE
    prepare_process(worker)
    reviews = ReviewService(store, lambda: POLICY)
    try:
        async with SlackBot(config, reviews, worker=worker) as bot:
            if worker.answers:
                await _read_ahead(reviews)
            yield bot.url if worker.answers else "publishes"
    finally:
        await store.close()


async def _read_ahead(reviews: ReviewService) -> None:
    """Wait until the bot has read what waits, as it has before people get to a card.

    It precomputes what a click on it writes, too; the benchmark begins when it is idle.
    """
    store = reviews.store
    keys = store.keys_of_tenant("default")
    waiting = await store.pending.soonest(keys, "default", MOST)
    async with asyncio.timeout(_START_S):
        while not all(map(reviews.as_shown.find, waiting)):  # noqa: ASYNC110 - the bot sets no event
            await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def _two_workers(settings: ServerSettings) -> AsyncGenerator[str]:
    """Serve our bot in two processes, with a third one that publishes."""
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(TemporaryDirectory(prefix="tk-bench-"))
        listener = opened.enter_context(shared_listener("127.0.0.1", 0))
        fd = listener.fileno()
        children = [
            replace(settings, name="twokey", part=f"{part}:{own}:{folder}/health")
            for part, own in (
                (Part.PUBLISHES, -1),
                (Part.ANSWERS, fd),
                (Part.ANSWERS, fd),
            )
        ]
        await asyncio.gather(
            *(opened.enter_async_context(serving(one, fds=[fd])) for one in children)
        )
        yield url_of(*listener.getsockname()[:2])


def _worker_of(part: str) -> Worker:
    """Return what the settings of one process of several name."""
    name, fd, health = part.split(":", 2)
    listener = socket.socket(fileno=int(fd)) if int(fd) >= 0 else None
    return Worker(Part(name), listener, health)


RUNS: dict[Name, Run] = {"twokey": _twokey, "two_workers": _two_workers}
