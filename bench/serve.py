"""Run the web server under test (our bot, plain Bolt, the least) in a subprocess.

Our bot runs in one process, or as `twokey bot --workers 2` does: two processes answer
on one port, and a third one publishes.

One line of JSON comes in on standard input, the request URL goes out in one line, and
the server stops when standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from aiohttp import web
from slack_bolt.app.async_app import AsyncApp
from slack_sdk.web.async_client import AsyncWebClient

from bench.ceiling import ceiling
from bench.clicks import AGENT, POLICY, bot_config
from bench.payments_stub import refunding_agent
from bench.stats import NotMeasured
from bench.store_secrets import SECRETS
from twokey.bot.app import SlackBot
from twokey.bot.ids import Action
from twokey.bot.ingress import EVENTS_PATH
from twokey.bot.listening import shared_listener, url_of
from twokey.bot.worker import WHOLE, Part, prepare_process
from twokey.cli.bot_workers import worker_of
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.graphs import attached
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.running import running
from twokey.gateway.service.reading_ahead import MOST
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.store import Store
from twokey.sandbox.server import Sandbox

Name = Literal[
    "twokey",
    "two_workers",
    "gateway",
    "bolt",
    "one_script",
    "one_script_and_reply",
    "two_of_one_script_and_reply",
]

_START_S = 120.0
_STOP_S = 10.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Which server to run, with its store and its Slack.

    Attributes:
        part: which process of several this is, as `worker_of` reads it; "" for all. Of
            the least, the number of the socket that it accepts from.
        checkpoints: where a gateway keeps the threads of its agents.
        effects: the file in which its tool writes a line a call.
    """

    name: Name
    store_url: str
    api_url: str
    bot_token: str
    signing_secret: str
    part: str = ""
    checkpoints: str = ""
    effects: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs, in a process with all that this one started.

    Attributes:
        url: for requests.
        process: id of its process.
    """

    url: str
    process: int


def settings_of(name: Name, store: Store, sandbox: Sandbox) -> ServerSettings:
    """Return the settings of a server on this store and this Slack."""
    return ServerSettings(
        name=name,
        store_url=store.conn.url,
        api_url=sandbox.api_url,
        bot_token=sandbox.bot_token,
        signing_secret=sandbox.signing_secret,
    )


@asynccontextmanager
async def serving(
    settings: ServerSettings, *, fds: Sequence[int] = ()
) -> AsyncGenerator[Served]:
    """Run a server in a process of its own while the block runs.

    Args:
        settings: which one.
        fds: file descriptors that the process inherits.

    Yields:
        Where it is.

    Raises:
        NotMeasured: when it did not start.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.serve",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=fds,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
        async with asyncio.timeout(_START_S):
            url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise NotMeasured(f"The server {settings.name!r} did not start; see above.")
        yield Served(url, process.pid)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def main() -> None:
    """Serve what standard input names until it ends."""
    settings = ServerSettings(**json.loads(sys.stdin.readline()))
    runs: dict[Name, Callable[[ServerSettings], AbstractAsyncContextManager[str]]] = {
        "twokey": _twokey,
        "two_workers": _two_workers,
        "gateway": _gateway,
        "bolt": _bolt,
        "one_script": _one_script,
        "one_script_and_reply": _one_script_and_reply,
        "two_of_one_script_and_reply": _two_of_one_script_and_reply,
    }
    async with runs[settings.name](settings) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def _twokey(settings: ServerSettings) -> AsyncGenerator[str]:
    """Serve our bot, whole: ingress, listeners, publisher."""
    store = Store(settings.store_url, secrets=SECRETS)
    config = bot_config(
        bot_token=settings.bot_token,
        signing_secret=settings.signing_secret,
        api_url=settings.api_url,
    )
    worker = worker_of(settings.part) if settings.part else WHOLE
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
    """Wait until the bot has read what waits, as it has before people get to a card."""
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
        for part, own in ((Part.PUBLISHES, -1), (Part.ANSWERS, fd), (Part.ANSWERS, fd)):
            child = replace(
                settings, name="twokey", part=f"{part}:{own}:{folder}/health"
            )
            fds = [own] if own >= 0 else []
            await opened.enter_async_context(serving(child, fds=fds))
        yield url_of(*listener.getsockname()[:2])


@asynccontextmanager
async def _gateway(settings: ServerSettings) -> AsyncGenerator[str]:
    """Run agents, without Slack."""
    store = Store(settings.store_url, secrets=SECRETS)
    graph = refunding_agent(Path(settings.effects))
    try:
        async with open_checkpoints(settings.checkpoints) as saver:
            runners = {AGENT: LangGraphLocal(attached(graph, saver))}
            async with running(store, lambda: POLICY, runners):
                yield "gateway"
    finally:
        await store.close()


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
        for _ in range(2):
            await opened.enter_async_context(serving(child, fds=[fd]))
        yield url_of(*listener.getsockname()[:2])


if __name__ == "__main__":
    asyncio.run(main())
