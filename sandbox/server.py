"""Web server of the sandbox: Slack's Web API, the page and the control API."""

import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web
from yarl import URL

from keyturn.sandbox import responses
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.client import Person
from keyturn.sandbox.clock import Clock
from keyturn.sandbox.control import Control
from keyturn.sandbox.delivery import Delivery
from keyturn.sandbox.fake_slack import Call, FakeSlack
from keyturn.sandbox.faults import Faults
from keyturn.sandbox.oauth import Place
from keyturn.sandbox.page_api import (
    COOKIE,
    PageApi,
    is_loopback,
    only_for,
    read_command,
    refusals_as_json,
)
from keyturn.sandbox.persistence import AutoSaver, load, restore
from keyturn.sandbox.rate_limits import RateLimits
from keyturn.sandbox.records import Suggestion
from keyturn.sandbox.samples import sample_workspace
from keyturn.sandbox.signed_http import SentRequest, SignedHttp
from keyturn.sandbox.socket_mode import Sockets
from keyturn.sandbox.web_api import WebApi, read_arguments
from keyturn.sandbox.workspace import Workspace

SHUTDOWN_S = 1.0


class Sandbox:
    """A local Slack workspace; use it with `async with`.

    Point an app at it with `AsyncWebClient(base_url=sb.api_url)` and `sb.bot_token`; it
    delivers over Socket Mode until `deliver_http` is called. With `state_path` the
    workspace, its messages and the app's credentials are saved in that file between
    runs.

    With `joins` it is another workspace of the same Slack: the app, its secrets and the
    clock are those of that sandbox, whose Web API and OAuth pages serve this one, too.
    """

    def __init__(
        self,
        workspace: Workspace | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        suggestions: Sequence[Suggestion] = (),
        *,
        state_path: Path | None = None,
        joins: "Sandbox | None" = None,
    ) -> None:
        self.workspace = workspace or sample_workspace()
        clock = joins.clock if joins else Clock()
        self.slack = FakeSlack(self.workspace, clock, tuple(suggestions))
        if joins:
            self.slack.signing_secret = joins.signing_secret
            self.slack.installer = joins.slack.installer
            self.slack.installer.places[self.workspace.team_id] = Place(
                self.workspace, self.slack.tokens
            )
            joins.slack.joined.append(self.slack)
        self._state_path = state_path
        self._host = host
        self._name = f"[{host}]" if ":" in host else host
        self._port = port
        self._token = "" if is_loopback(host) else secrets.token_urlsafe()
        self._open = AsyncExitStack()
        self._started: _RunningServer | None = None

    async def __aenter__(self) -> Self:
        """Start listening, with the state saved in `state_path`, if any.

        Raises:
            OSError: the port is taken.
            ValueError: `state_path` is not a saved sandbox.
        """
        async with AsyncExitStack() as opening:
            jar = aiohttp.CookieJar(unsafe=True)  # also accept cookies of IP addresses
            session = await opening.enter_async_context(
                aiohttp.ClientSession(cookie_jar=jar)
            )
            if self._state_path is not None:
                restore(load(self._state_path), self.slack)
                saver = AutoSaver(self._state_path, self.slack)
                opening.callback(saver.close)
            started = _RunningServer(self.slack, session)
            runner = web.AppRunner(
                started.application(self._host, self._token),
                shutdown_timeout=SHUTDOWN_S,
            )
            await runner.setup()
            opening.push_async_callback(runner.cleanup)
            opening.push_async_callback(started.close)
            site = web.TCPSite(runner, self._host, self._port)
            try:
                await site.start()
            except OSError as error:
                at = f"on port {self._port} on {self._host!r}"
                reason = f"The sandbox cannot listen {at}; choose another port or host."
                raise OSError(error.errno, reason) from error
            port: int = runner.addresses[0][1]
            self.slack.base_url = f"http://{self._name}:{port}"
            jar.update_cookies({COOKIE: self._token}, URL(self.slack.base_url))
            self._started = started
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Stop listening, and close every socket and stream."""
        await self._open.aclose()
        self._started = None

    @property
    def url(self) -> str:
        """The page's address, without a trailing slash."""
        return self.slack.base_url

    @property
    def page_url(self) -> str:
        """The address to open in a browser; with a token unless on loopback."""
        return f"{self.url}/?token={self._token}" if self._token else self.url

    @property
    def api_url(self) -> str:
        """The Web API's address, for slack_sdk's `base_url`."""
        return f"{self.slack.base_url}/api/"

    @property
    def bot_token(self) -> str:
        """The bot's token."""
        return self.slack.bot_token

    @property
    def app_token(self) -> str:
        """The app-level token, for Socket Mode."""
        return self.slack.app_token

    @property
    def signing_secret(self) -> str:
        """The secret that signs every HTTP delivery."""
        return self.slack.signing_secret

    @property
    def clock(self) -> Clock:
        """The sandbox's clock."""
        return self.slack.clock

    @property
    def rates(self) -> RateLimits:
        """The rate limits."""
        return self.slack.rates

    @property
    def faults(self) -> Faults:
        """The planned faults."""
        return self.slack.faults

    @property
    def calls(self) -> list[Call]:
        """Every call of the Web API, oldest first."""
        return self.slack.calls

    @property
    def problems(self) -> list[str]:
        """Errors of the app that Slack shows as "trouble connecting"."""
        return self.slack.problems

    @property
    def requests(self) -> list[SentRequest]:
        """The newest HTTP requests sent to the app, oldest first."""
        return self._running.http.sent

    @property
    def control(self) -> Control:
        """Operations with which a test changes the workspace."""
        return self._running.control

    def deliver_http(self, request_url: str) -> None:
        """Deliver by signed HTTP to this URL from now on."""
        self.control.deliver_http(request_url)

    def person(self, user_id: str) -> Person:
        """Return a scripted person of the workspace."""
        self.workspace.user(user_id)  # refuses an unknown id
        return Person(self.url, user_id, self._running.session)

    @property
    def _running(self) -> "_RunningServer":
        if self._started is None:
            raise RuntimeError(
                "The sandbox is not running; use `async with Sandbox()`."
            )
        return self._started


class _RunningServer:
    """The parts that exist only while the server runs."""

    def __init__(self, slack: FakeSlack, session: aiohttp.ClientSession) -> None:
        def everyone_looks() -> None:
            slack.workspace.changed(slack.workspace.users)

        self.session = session
        self._slack = slack
        self._sockets = Sockets(slack.clock, slack.workspace.app.id, everyone_looks)
        self.http = SignedHttp(slack.clock, slack.signing_secret, session)
        self._delivery = Delivery(slack.clock, slack.faults, self._sockets)
        self._page = PageApi(slack, self._delivery)
        self._api = WebApi(slack, self._sockets)
        self.control = Control(slack, self._delivery, self._sockets, self.http)

    def application(self, host: str, token: str) -> web.Application:
        """Return the web application with every route."""
        application = web.Application(
            middlewares=[refusals_as_json, only_for(host, token)]
        )
        application.add_routes(
            [
                web.get("/", self._page.index),
                web.get("/archives/{place:.+}", self._show_message),
                web.get("/static/{path:.+}", self._page.static),
                web.get("/sandbox/state", self._page.state),
                web.get("/sandbox/events", self._page.events),
                web.post("/sandbox/act", self._page.act),
                web.post("/sandbox/control", self._take_control),
                web.get("/oauth/v2/authorize", self._authorize),
                web.get("/link", self._sockets.serve),
                web.post("/response/{id}", self._respond),
                web.get("/api/{method}", self._api.serve),
                web.post("/api/{method}", self._api.serve),
            ]
        )
        return application

    async def close(self) -> None:
        """End retries, streams and sockets, so that the server can stop at once."""
        self._page.close()
        await self._delivery.close()
        await self._sockets.close()

    async def _take_control(self, request: web.Request) -> web.Response:
        return web.json_response(await self.control.run(await read_command(request)))

    async def _show_message(self, request: web.Request) -> web.Response:
        raise web.HTTPFound(f"/#{request.match_info['place']}")

    async def _authorize(self, request: web.Request) -> web.Response:
        query = request.query
        address = self._slack.installer.consent(
            query.get("client_id", ""),
            query.get("redirect_uri", ""),
            query.get("state", ""),
            place=query.get("team", ""),
            user_scope=query.get("user_scope", ""),
            declines=bool(query.get("sandbox_declines")),
        )
        raise web.HTTPFound(address)

    async def _respond(self, request: web.Request) -> web.Response:
        try:
            place = self._slack.response_urls.use(request.match_info["id"])
        except ApiError as refused:
            return web.json_response(refused.answer(), status=HTTPStatus.NOT_FOUND)
        try:
            responses.respond(self._slack, place, await read_arguments(request))
        except ApiError as refused:
            return web.json_response(refused.answer())
        return web.json_response({"ok": True})
