"""HTTP API of the sandbox's web page: read and act as one person."""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias

from aiohttp import web
from aiohttp.typedefs import Middleware

from keyturn.sandbox import views
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.delivery import Delivery
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject, as_object
from keyturn.sandbox.records import Channel, Message, User, View
from keyturn.sandbox.user_actions import UserActions

PAGE = Path(__file__).parent / "page"
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
KEEP_ALIVE_S = 15.0
OF_THE_APP = ("/api/", "/link", "/response/", "/oauth/")
COOKIE = "sandbox_token"
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; object-src 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def state(slack: FakeSlack, user: User, *, connected: bool) -> JsonObject:
    """Return the state that one person can see, as the page draws it."""
    workspace = slack.workspace
    home = workspace.homes.get(user.id)
    return {
        "seq": workspace.seq,
        "now": slack.clock.now(),
        "team": {"id": workspace.team_id, "name": workspace.team_name},
        "me": asdict(user),
        "users": [asdict(known) for known in workspace.users.values()],
        "bot": {
            "user_id": workspace.app.bot_user,
            "name": workspace.app.name,
            "connected": connected,
        },
        "usergroups": [asdict(group) for group in workspace.groups.values()],
        "channels": [
            _channel(slack, channel, user)
            for channel in workspace.channels.values()
            if workspace.can_see(user, channel)
        ],
        "views": [_view(slack, view) for view in workspace.modals[user.id]],
        "home": None if home is None else _view(slack, home),
        "notices": [asdict(notice) for notice in workspace.notices[user.id]],
        "suggestions": [asdict(suggestion) for suggestion in slack.suggestions],
        "commands": list(workspace.commands),
    }


def _channel(slack: FakeSlack, channel: Channel, user: User) -> JsonObject:
    workspace = slack.workspace
    return {
        "id": channel.id,
        "name": workspace.app.name if channel.is_im else channel.name,
        "is_im": channel.is_im,
        "is_private": channel.is_private,
        "is_archived": channel.is_archived,
        "is_member": user.id in channel.members,
        "bot_is_member": workspace.app.bot_user in channel.members,
        "messages": [
            _message(message, user)
            for message in workspace.visible_messages(channel, user.id)
        ],
    }


def _message(message: Message, reader: User) -> JsonObject:
    return {
        "ts": message.ts,
        "user": message.user,
        "bot": message.is_bot,
        "text": message.text,
        "blocks": None if message.blocks is None else list(message.blocks),
        "thread_ts": message.thread_ts,
        "edited": message.edited,
        "ephemeral": message.ephemeral_to is not None,
        "deleted": message.is_tombstone,
        "mentions_me": reader.id in message.notified,
        "metadata": message.metadata,
    }


def _view(slack: FakeSlack, view: View) -> JsonObject:
    return {**views.wire(slack, view), "errors": view.errors}


class PageApi:
    """The endpoints for the page and for scripted people."""

    def __init__(self, slack: FakeSlack, delivery: Delivery) -> None:
        self._slack = slack
        self._delivery = delivery
        self._user_actions = UserActions(slack, delivery)
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End every open stream of events."""
        self._closing.set()

    async def index(self, request: web.Request) -> web.StreamResponse:
        """Serve the page."""
        return self._file(request, "index.html")

    async def static(self, request: web.Request) -> web.StreamResponse:
        """Serve a file of the page."""
        return self._file(request, request.match_info["path"])

    async def state(self, request: web.Request) -> web.Response:
        """Answer `GET /sandbox/state?user=U…`."""
        user = self._slack.workspace.user(request.query.get("user"))
        connected = self._delivery.transport.connected
        body = state(self._slack, user, connected=connected)
        return web.json_response(body, headers=SECURITY_HEADERS)

    async def act(self, request: web.Request) -> web.Response:
        """Answer `POST /sandbox/act` once the app has answered."""
        try:
            answer = await self._user_actions.act(await read_command(request))
        except ApiError as refused:
            answer = refused.answer()
        return web.json_response(answer, headers=SECURITY_HEADERS)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Stream one `data: {"seq": n}` per change that the person can see."""
        user = self._slack.workspace.user(request.query.get("user"))
        news = asyncio.Event()
        news.set()

        def watch(seen_by: frozenset[str]) -> None:
            if user.id in seen_by:
                news.set()

        response = web.StreamResponse(
            headers={**SECURITY_HEADERS, "Content-Type": "text/event-stream"}
        )
        self._slack.workspace.watchers.append(watch)
        try:
            await response.prepare(request)
            while not self._closing.is_set():
                if news.is_set():
                    news.clear()
                    line = json.dumps({"seq": self._slack.workspace.seq})
                    await response.write(f"data: {line}\n\n".encode())
                elif await self._quiet(news):
                    await response.write(b": still here\n\n")
        except ConnectionError:
            return response
        finally:
            self._slack.workspace.watchers.remove(watch)
        return response

    async def _quiet(self, news: asyncio.Event) -> bool:
        """Wait for changes or the end; return True if neither came for a while."""
        waits = [asyncio.ensure_future(e.wait()) for e in (news, self._closing)]
        try:
            done, _ = await asyncio.wait(
                waits, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()
        return not done

    def _file(self, request: web.Request, name: str) -> web.StreamResponse:
        del request
        # Looked up among existing files: no requested name reaches the file system.
        files = {one.relative_to(PAGE).as_posix(): one for one in PAGE.rglob("*")}
        path = files.get(name)
        if path is None or not path.is_file():
            raise web.HTTPNotFound(text=f"The page has no file {name!r}.\n")
        return web.FileResponse(path, headers=SECURITY_HEADERS)


async def read_command(request: web.Request) -> JsonObject:
    """Return the JSON object posted by the page or a script.

    Another site's page can neither send JSON here nor fake this origin.

    Raises:
        ApiError: `invalid_origin`, `invalid_content_type` or `invalid_json`.
    """
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.host:
        raise ApiError("invalid_origin", origin=origin)
    if request.content_type != "application/json":
        raise ApiError("invalid_content_type", expected="application/json")
    try:
        command = as_object(json.loads(await request.text()))
    except ValueError:
        raise ApiError("invalid_json") from None
    if not command:
        raise ApiError("invalid_json")
    return command


def only_for(host: str, token: str) -> Middleware:
    """Return a middleware that restricts access to the page.

    On loopback only loopback names are served: another site's name may point at
    127.0.0.1 (DNS rebinding). On other interfaces the page needs the token, once in its
    address and then in a cookie. The app's endpoints are already protected by Slack's
    tokens and secrets.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = request.host.rpartition(":")[0] or request.host
        if is_loopback(host):
            if not is_loopback(name):
                raise ApiError("invalid_host", host=request.host)
        elif not request.path.startswith(OF_THE_APP):
            given = request.query.get("token") or request.cookies.get(COOKIE, "")
            if not secrets.compare_digest(given.encode(), token.encode()):
                raise ApiError("invalid_token")
            if "token" in request.query:
                entered = web.HTTPFound(request.rel_url.without_query_params("token"))
                entered.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
                raise entered
        return await handler(request)

    return check


def is_loopback(name: str) -> bool:
    """Return True if a host name or address belongs only to this machine."""
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost"


@web.middleware
async def refusals_as_json(
    request: web.Request, handler: Handler
) -> web.StreamResponse:
    """Answer a refusal with status 400 and its error name."""
    try:
        return await handler(request)
    except ApiError as refused:
        return web.json_response(
            refused.answer(), status=HTTPStatus.BAD_REQUEST, headers=SECURITY_HEADERS
        )
