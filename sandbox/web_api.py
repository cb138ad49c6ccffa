"""Route Web API calls: authentication, scopes, rate limits, then the method."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

from aiohttp import web

from keyturn.sandbox import chat_methods, messages, view_methods, workspace_methods
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.fake_slack import Call, FakeSlack
from keyturn.sandbox.faults import Fault, PlannedFault
from keyturn.sandbox.json_types import JsonObject, as_object
from keyturn.sandbox.oauth import basic_credentials
from keyturn.sandbox.socket_mode import Sockets
from keyturn.sandbox.tokens import Token, TokenKind

Method: TypeAlias = Callable[[FakeSlack, JsonObject], JsonObject]

METHODS: dict[str, Method] = {
    **chat_methods.METHODS,
    **view_methods.METHODS,
    **workspace_methods.METHODS,
}
APP_METHODS = frozenset({"apps.connections.open"})
OPEN_METHODS = frozenset({"api.test", "oauth.v2.access"})
"""Methods that need no token."""

SECRET_ARGUMENTS = frozenset({"client_secret", "code", "refresh_token", "token"})
"""Never recorded in the log of calls."""

SCOPES: dict[str, str] = {
    "apps.connections.open": "connections:write",
    "bots.info": "users:read",
    "chat.delete": "chat:write",
    "chat.postEphemeral": "chat:write",
    "chat.postMessage": "chat:write",
    "chat.update": "chat:write",
    "conversations.open": "im:write",
    "usergroups.list": "usergroups:read",
    "usergroups.users.list": "usergroups:read",
    "users.info": "users:read",
    "users.list": "users:read",
}
"""The scope of each method that needs one, from the method pages. The scopes of
conversation methods depend on the kind of conversation; see workspace_methods.
"""


@dataclass(slots=True)
class WebApi:
    """Serve `POST /api/<method>` as Slack does."""

    slack: FakeSlack
    sockets: Sockets

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one call; like Slack's, refusals have status 200 and `ok: false`.

        Status 429 and 500, and closed connections, come from rate limits and faults.
        """
        name = request.match_info["method"]
        try:
            arguments = await read_arguments(request)
        except ApiError as refused:
            return web.json_response(refused.answer())
        slack = self._answering(bearer(request, arguments), arguments)
        if slack is not self.slack:
            return await WebApi(slack, self.sockets).serve(request)
        if name in OPEN_METHODS:
            header = request.headers.get("Authorization", "")
            arguments |= basic_credentials(header)
        fault = self.slack.faults.next_fault(name)
        if fault is not None and (early := await self._before(fault, request)):
            self._log(name, arguments, fault.fault.value)
            return early
        try:
            wait = self._admit(name, request, arguments)
            if wait is not None:
                self._log(name, arguments, "ratelimited")
                return too_many_requests(wait)
            if name == "auth.revoke":
                self.slack.tokens.revoke(bearer(request, arguments))
            answer = self._run(name, arguments)
            self._log(name, arguments, None)
        except ApiError as refused:
            answer = refused.answer()
            self._log(name, arguments, refused.error)
        if fault is not None and fault.fault is Fault.LOST_RESPONSE:
            abort(request)
        # As in Slack: a client reads its token's scopes here.
        scopes = ",".join(sorted(self.slack.workspace.bot_scopes))
        return web.json_response(answer, headers={"X-OAuth-Scopes": scopes})

    def _answering(self, token: str, arguments: JsonObject) -> FakeSlack:
        """Return the workspace that a call is about.

        A token of an organization works in several: its other arguments name one.
        """
        every = (self.slack, *self.slack.joined)
        knowing = [one for one in every if token in one.tokens.known]
        given = {str(value) for value in arguments.values()}
        named = [one for one in knowing if given & _ids_of(one)]
        return [*named, *knowing, self.slack][0]

    def _admit(
        self, name: str, request: web.Request, arguments: JsonObject
    ) -> int | None:
        """Check method, token, scope and rate; return the seconds to wait, if any."""
        if name not in METHODS and name not in APP_METHODS:
            raise ApiError("unknown_method", req_method=name)
        if name not in OPEN_METHODS:
            value = bearer(request, arguments)
            arguments.pop("token", "")
            token = self.slack.tokens.check(value, self.slack.clock.now())
            self._check_scope(name, token)
        return self.slack.rates.take(name, self._rate_key(arguments))

    def _rate_key(self, arguments: JsonObject) -> str:
        """Return the id of the call's channel: rate limits are per channel."""
        wanted = str(arguments.get("channel", ""))
        try:
            return messages.reachable(self.slack.workspace, wanted).id
        except ApiError:
            return wanted

    def _check_scope(self, name: str, token: Token) -> None:
        expected = TokenKind.APP if name in APP_METHODS else TokenKind.BOT
        if token.kind is not expected:
            raise ApiError("not_allowed_token_type")
        needed = SCOPES.get(name)
        provided = self.slack.workspace.bot_scopes
        if expected is TokenKind.BOT and needed and needed not in provided:
            raise ApiError("missing_scope", needed=needed, provided=",".join(provided))

    def _run(self, name: str, arguments: JsonObject) -> JsonObject:
        if name in APP_METHODS:
            address = self.slack.base_url.replace("http", "ws", 1)
            url = f"{address}/link?ticket={self.sockets.ticket()}"
            return {"ok": True, "url": url}
        return {"ok": True, **METHODS[name](self.slack, arguments)}

    async def _before(
        self, fault: PlannedFault, request: web.Request
    ) -> web.Response | None:
        """Return the answer of a fault that prevents the call's effect."""
        match fault.fault:
            case Fault.HTTP_500:
                return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR)
            case Fault.RATE_LIMIT:
                return too_many_requests(max(1, int(fault.seconds)))
            case Fault.RESET:
                abort(request)
                return web.Response()
            case Fault.SLOW:
                await self.slack.clock.sleep(fault.seconds)
            case Fault.LOST_RESPONSE:
                pass
            case _:
                return malformed_answer(fault.fault, fault.error)
        return None

    def _log(self, name: str, arguments: JsonObject, error: str | None) -> None:
        shown = {k: v for k, v in arguments.items() if k not in SECRET_ARGUMENTS}
        call = Call(name, shown, self.slack.clock.now(), error)
        self.slack.calls.append(call)


def _ids_of(slack: FakeSlack) -> set[str]:
    """Return the ids that occur only in one workspace."""
    workspace = slack.workspace
    views = {view.id for stack in workspace.modals.values() for view in stack}
    return {
        workspace.team_id,
        *workspace.channels,
        *workspace.users,
        *workspace.groups,
        *views,
        *slack.triggers.known,
    } - {workspace.app.bot_user}


def bearer(request: web.Request, arguments: JsonObject) -> str:
    """Return the token of a call, from its header or its arguments."""
    header = request.headers.get("Authorization", "")
    given = header.removeprefix("Bearer ").strip() if header[:7] == "Bearer " else ""
    return given or str(arguments.get("token", ""))


async def read_arguments(request: web.Request) -> JsonObject:
    """Return a call's arguments from its query and its form or JSON body.

    Raises:
        ApiError: `invalid_json`.
    """
    arguments: JsonObject = dict(request.query.items())
    if request.content_type == "application/json":
        try:
            arguments |= as_object(json.loads(await request.text() or "{}"))
        except ValueError:
            raise ApiError("invalid_json") from None
    elif request.can_read_body:
        form = await request.post()
        arguments |= {key: str(value) for key, value in form.items()}
    return arguments


def malformed_answer(fault: Fault, error: str) -> web.Response:
    """Return a refusal, or a malformed answer, as Slack or a proxy may give."""
    if fault is Fault.NO_JSON:
        return web.Response(text="<html>", content_type="text/html")
    if fault is Fault.REFUSE:
        return web.json_response(ApiError(error).answer())
    return web.json_response({"ok": True})


def too_many_requests(seconds: int) -> web.Response:
    """Return Slack's answer to a rate-limited call."""
    return web.json_response(
        {"ok": False, "error": "ratelimited"},
        status=HTTPStatus.TOO_MANY_REQUESTS,
        headers={"Retry-After": str(seconds)},
    )


def abort(request: web.Request) -> None:
    """Close the connection of a request before its answer is sent."""
    transport = request.transport
    if transport is not None:
        transport.abort()
