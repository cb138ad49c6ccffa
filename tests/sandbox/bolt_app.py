"""Run a real Bolt app against the sandbox, over HTTP or Socket Mode."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import pytest
from aiohttp import web
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.app.async_app import AsyncApp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from keyturn.sandbox.server import Sandbox

Mode = Literal["http", "socket"]
Kind = Literal["action", "command", "event", "view", "view_closed"]
Listener = TypeVar("Listener", bound=Callable[..., Awaitable[None]])


@dataclass
class RunningApp:
    """The app, its Web API client, and the payloads its listeners noted.

    Bolt and the SDK are typed in part only, hence Any.
    """

    bolt: Any
    client: Any
    heard: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def on(self, kind: Kind, name: str) -> Callable[[Listener], Listener]:
        """Register a listener, as Bolt's decorator of that kind does."""

        def register(listener: Listener) -> Listener:
            getattr(self.bolt, kind)(name)(listener)
            return listener

        return register

    def note_clicks(self, *action_ids: str) -> None:
        """Acknowledge clicks on these and note them in `heard`."""
        for action_id in action_ids:

            @self.on("action", action_id)
            async def noted(ack: Any, body: dict[str, Any]) -> None:
                self.heard.append(body)
                await ack()


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait for a condition that sends no notification."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


async def refusal(call: Any) -> dict[str, Any]:
    """Return the answer to a call that must be refused."""
    with pytest.raises(SlackApiError) as caught:
        await call
    return dict(cast("Any", caught.value).response.data)


async def error(call: Any) -> str:
    """Return the error name of a call that must be refused."""
    return str((await refusal(call))["error"])


def new_client(sandbox: Sandbox, token: str | None = None) -> Any:
    """Return the real SDK's client, which retries nothing."""
    client = AsyncWebClient(token=token or sandbox.bot_token, base_url=sandbox.api_url)
    client.retry_handlers = []
    return client


def new_app(sandbox: Sandbox) -> RunningApp:
    client = new_client(sandbox)
    bolt = AsyncApp(
        client=client,
        signing_secret=sandbox.signing_secret,
        process_before_response=True,
    )
    return RunningApp(bolt, client)


@asynccontextmanager
async def served(app: RunningApp, sandbox: Sandbox, mode: Mode) -> AsyncGenerator[None]:
    """Connect the app to the sandbox, and disconnect it at the end."""
    if mode == "http":
        runner = web.AppRunner(app.bolt.server(path="/slack/events").web_app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        sandbox.deliver_http(f"http://127.0.0.1:{port}/slack/events")
        try:
            yield
        finally:
            await runner.cleanup()
    else:
        handler: Any = AsyncSocketModeHandler(
            app.bolt, sandbox.app_token, web_client=app.client, ping_interval=0.5
        )
        await handler.connect_async()
        try:
            yield
        finally:
            await handler.close_async()
