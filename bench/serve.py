"""Run the server under test (the bot, or plain Bolt) in a subprocess.

It reads one line of JSON from standard input, writes the request URL as one line, and
stops when standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from aiohttp import web
from slack_bolt.app.async_app import AsyncApp
from slack_sdk.web.async_client import AsyncWebClient

from bench import SECRETS
from bench.clicks import bot_config
from bench.stats import NotMeasured
from bench.world import POLICY
from keyturn.bot.app import SlackBot
from keyturn.bot.ids import Action
from keyturn.bot.manifest import EVENTS_PATH
from keyturn.gateway.garbage_collection import spare_what_is_there
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox

Name = Literal["keyturn", "bolt"]

_START_S = 120.0
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The server to run, with its store and its Slack."""

    name: Name
    store_url: str
    api_url: str
    bot_token: str
    signing_secret: str


@dataclass(frozen=True, slots=True)
class Served:
    """A running server, in one process with its children.

    Attributes:
        url: the request URL.
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
async def serving(settings: ServerSettings) -> AsyncGenerator[Served]:
    """Run a server in a separate process while the block runs.

    Args:
        settings: the server and its settings.

    Yields:
        The running server.

    Raises:
        NotMeasured: when it did not start.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.serve",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
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


@asynccontextmanager
async def _keyturn(settings: ServerSettings) -> AsyncGenerator[str]:
    """Serve the bot: dispatch, listeners, publisher."""
    store = Store(settings.store_url, secrets=SECRETS)
    config = bot_config(
        bot_token=settings.bot_token,
        signing_secret=settings.signing_secret,
        api_url=settings.api_url,
    )
    spare_what_is_there()
    try:
        async with SlackBot(config, ReviewService(store, lambda: POLICY)) as bot:
            yield bot.url
    finally:
        await store.close()


@asynccontextmanager
async def _bolt(settings: ServerSettings) -> AsyncGenerator[str]:
    """Serve Bolt as in its documentation, with a listener that only acknowledges."""
    # Bolt is only partly typed.
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


async def main() -> None:
    """Serve the server from standard input until the input ends."""
    settings = ServerSettings(**json.loads(sys.stdin.readline()))
    serve = _keyturn if settings.name == "keyturn" else _bolt
    async with serve(settings) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
