"""Client for Slack's Web API: one error type per kind of failure.

It also finds a conversation that moved to another channel id.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple, cast

import aiohttp
from slack_sdk.web.internal_utils import get_user_agent

from keyturn.bot.text import link_url
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.instruments import SLACK_CALLS

logger = logging.getLogger(__name__)

SlackBody = Mapping[str, object]

TIMEOUT_S = 10.0
_REDIRECT = 300
_SERVER_ERROR = 500
_TOO_MANY = 429
_WAIT_S = 30.0
_LONGEST_WAIT_S = 3600.0
"""Maximum time until Slack is asked again, even if its header names a longer one."""

_TAKEN = {"ok", ""}
_SERVER_ERRORS = frozenset(
    {
        "external_channel_migrating",
        "fatal_error",
        "internal_error",
        "request_timeout",
        "service_unavailable",
        "update_failed",
    }
)
"""Refusals that pass by themselves; the call may have had its effect."""


TOKEN_ERRORS = frozenset(
    {
        "account_inactive",
        "invalid_auth",
        "not_authed",
        "org_login_required",
        "team_access_not_granted",
        "token_expired",
        "token_revoked",
    }
)
"""Refusals that mean the token itself: no call with it succeeds any more."""


WORKSPACE_ERRORS = frozenset(
    {
        "accesslimited",
        "ekm_access_denied",
        "message_limit_exceeded",
        "team_added_to_org",
        "two_factor_setup_required",
    }
)
"""Refusals of every call in a workspace; they pass, or an administrator ends them.

One example is the move of the workspace into an organization. From the method pages,
https://docs.slack.dev/reference/methods/chat.postMessage
"""

NOT_ABOUT_THE_CARD = (
    TOKEN_ERRORS
    | WORKSPACE_ERRORS
    | {"access_denied", "missing_scope", "no_permission", "not_allowed_token_type"}
)
"""Refusals of the bot as a whole: the message is retried."""

STILL_THERE = frozenset({"cant_update_message", "edit_window_closed"})
"""Refusals to update a message that still exists in its channel."""

NEVER_UPDATED = STILL_THERE | {"message_not_found"}
"""Refusals after which a message can never be updated."""

ABOUT_THE_BLOCKS = frozenset(
    {
        "block_mismatch",
        "invalid_blocks",
        "invalid_blocks_format",
        "metadata_too_large",
        "msg_blocks_too_long",
        "msg_too_long",
    }
)
"""Refusals of a message's content; a plainer one may be accepted."""


class _Response(NamedTuple):
    """Slack's answer; ``body`` is empty unless the answer is a JSON object."""

    body: SlackBody
    text: str
    status: int
    headers: Mapping[str, str]


class SlackError(KeyturnError):
    """A call to Slack did not succeed; the subclasses differ in what to do.

    Attributes:
        result: in the metrics.
        method: of the Web API.
    """

    result = "no_answer"

    def __init__(self, method: str, problem: str) -> None:
        self.method = method
        super().__init__(f"Slack's {method} failed: {problem}.")


class RateLimited(SlackError):
    """Slack asks to wait; nothing happened.

    Attributes:
        retry_after_s: for how long, for this method.
    """

    result = "rate_limited"

    def __init__(self, method: str, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(method, f"too many calls, wait {retry_after_s:.0f} s")


class SlackRefused(SlackError):
    """Slack refused the call; the same call would be refused again.

    Attributes:
        error: Slack's error code, such as ``channel_not_found``.
    """

    result = "refused"

    def __init__(self, method: str, error: str) -> None:
        self.error = error
        super().__init__(method, f"it was refused with {error!r}")


class SlackNoResponse(SlackError):
    """No answer: the call may or may not have had its effect."""


def _count(method: str, failure: SlackError | None) -> None:
    SLACK_CALLS.labels(method, failure.result if failure else "ok").inc()


class Slack:
    """Slack's Web API through one shared connection pool.

    Nothing is retried here, because only the caller can decide whether a call may be
    repeated. (The SDK's own retry repeats ``chat.postMessage`` after a lost answer.)
    The calls use the session directly, since those of the SDK take twice the processor
    time.

    Args:
        token: the bot's.
        api_url: with a slash at its end.
        session: the caller closes it.

    Attributes:
        token_error: Slack's error code for its last refusal of the token; "" if it
            works.
        team: the workspace that a token of a whole organization works for; "" if the
            token is of one workspace.
    """

    def __init__(
        self, token: str, *, api_url: str, session: aiohttp.ClientSession
    ) -> None:
        self._api_url, self.session = api_url, session
        self.team = self.workspace_url = self._token = ""
        self.use_token(token)

    def use_token(self, token: str) -> None:
        """Use a token; for another one, Slack's answers about the last one are void."""
        if token == self._token:
            return
        self._token = token
        self._headers = {
            "Authorization": f"Bearer {token}",
            "User-Agent": get_user_agent(),
        }
        self.token_error = ""

    async def call(self, method: str, **arguments: object) -> SlackBody:
        """Call a method that takes JSON.

        Raises:
            RateLimited, SlackRefused, SlackNoResponse: see there.
        """
        # Omitted and not sent as null, which some methods do not treat as absent.
        given = {key: value for key, value in arguments.items() if value is not None}
        return (await self._response(method, json=given)).body

    async def ask(self, method: str, **arguments: str) -> SlackBody:
        """Call a method that only reads and takes a query; raises as `call` does."""
        # Ids of user groups are unique in a workspace, and not in an organization.
        if self.team and method.startswith("usergroups."):
            arguments["team_id"] = self.team
        return (await self._response(method, params=arguments)).body

    async def test(self) -> tuple[SlackBody, frozenset[str]]:
        """Return the result of ``auth.test``, and the granted scopes.

        Raises:
            RateLimited, SlackRefused, SlackNoResponse: see there.
        """
        response = await self._response("auth.test", json={})
        scopes = response.headers.get("x-oauth-scopes", "").split(",")
        found = frozenset(scope.strip() for scope in scopes if scope.strip())
        self.workspace_url = text_at(response.body, "url")
        return response.body, found

    def message_url(self, channel: str, ts: str) -> str:
        """Return a message's address in the workspace of `test`, else ""."""
        url = f"{self.workspace_url}archives/{channel}/p{ts.replace('.', '')}"
        return url if link_url(url) else ""

    async def open_socket(self, app_token: str) -> str:
        """Return an address for one Socket Mode connection; raises as `call` does."""
        headers = {"Authorization": f"Bearer {app_token}"}
        response = await self._response("apps.connections.open", headers=headers)
        return str(response.body.get("url", ""))

    async def respond(self, url: str, body: Mapping[str, object]) -> None:
        """Post to the ``response_url`` of a payload; raises as `call` does."""
        response = await self._exchange("response_url", "POST", url, body=body)
        is_limited = response.status == _TOO_MANY
        # A refusal may have status 200, too, and so may the page of a proxy.
        is_taken = response.body.get("ok") is True or response.text in _TAKEN
        failure: SlackError | None = None
        if response.status >= _REDIRECT and not is_limited:
            failure = SlackRefused("response_url", f"http_{response.status}")
        elif is_limited or not is_taken:
            failure = _failure_of("response_url", response)
        _count("response_url", failure)
        if failure is not None:
            raise failure

    async def _response(
        self,
        method: str,
        *,
        json: dict[str, object] | None = None,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> _Response:
        # Without the charset Slack adds a warning to its answer.
        kind = {"Content-Type": "application/json;charset=utf-8"} if json else {}
        response = await self._exchange(
            method,
            "GET" if params is not None else "POST",
            f"{self._api_url}{method}",
            body=json,
            params=params,
            headers=self._headers | kind | (headers or {}),
        )
        is_taken = response.status == HTTPStatus.OK and bool(response.body.get("ok"))
        failure = None if is_taken else _failure_of(method, response)
        _count(method, failure)
        # A call with separate headers uses the app-level token (`open_socket`), which
        # does not concern the bot's. Any other answer shows that the token works.
        if headers is None and (is_taken or isinstance(failure, SlackRefused)):
            told = failure.error if isinstance(failure, SlackRefused) else ""
            self.token_error = told if told in TOKEN_ERRORS else ""
        if failure is not None:
            raise failure
        return response

    async def _exchange(
        self,
        method: str,
        verb: str,
        url: str,
        *,
        body: Mapping[str, object] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> _Response:
        try:
            # A redirect would send the card's content to another server.
            async with (
                asyncio.timeout(TIMEOUT_S),
                self.session.request(
                    verb,
                    url,
                    json=body,
                    params=params,
                    headers=headers,
                    allow_redirects=False,
                ) as response,
            ):
                text = (await response.text(errors="replace")).strip()
                return _Response(_object(text), text, response.status, response.headers)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = SlackNoResponse(method, f"no answer ({type(error).__name__})")
            _count(method, failure)
            raise failure from error


def text_at(reply: SlackBody, *path: str) -> str:
    """Return a text from inside a reply, "" if it is absent."""
    node: object = reply
    for key in path:
        if not isinstance(node, Mapping):
            return ""
        node = cast("Mapping[object, object]", node).get(key)
    return node if isinstance(node, str) else ""


def _object(text: str) -> SlackBody:
    """Return the JSON object of an answer; an empty one for any other answer."""
    try:
        found: object = json.loads(text)
    except ValueError:
        # From a proxy, or from a Slack in trouble.
        return {}
    return cast("SlackBody", found) if isinstance(found, dict) else {}


def _failure_of(method: str, response: _Response) -> SlackError:
    body, status = response.body, response.status
    name = str(body.get("error", ""))
    # Slack documents both spellings, in addition to the status.
    if status == _TOO_MANY or name in {"ratelimited", "rate_limited"}:
        return RateLimited(method, _retry_after(response))
    # No response rather than a refusal: the call may have had its effect, so a caller
    # that posts has to expect a second copy.
    if status >= _SERVER_ERROR or name in _SERVER_ERRORS or not name:
        return SlackNoResponse(method, f"status {status}")
    return SlackRefused(method, name)


def _retry_after(response: _Response) -> float:
    try:
        # At least a second: "0" would cause an immediate retry.
        asked_s = max(1.0, float(response.headers.get("retry-after", "")))
        return min(_LONGEST_WAIT_S, asked_s)
    except ValueError:
        return _WAIT_S


Arguments = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class MovedChannels:
    """Looks up the new id of a channel, for messages that are in it.

    Slack no longer accepts the old id, and messages keep their ts. The new id is known
    after a click on a card there (`listeners.usable_copy`). Only thread replies and
    updates go to the new id, and no new cards: the channel is now shared with another
    organization, and the operator decides whether cards belong there.

    Attributes:
        look_up: returns the new id of each channel, by its old id.
        found: new ids that this process has used, by the old id.
    """

    look_up: Callable[[], Awaitable[Mapping[str, str]]]
    found: dict[str, str] = field(default_factory=dict[str, str])

    async def call(self, slack: Slack, method: str, arguments: Arguments) -> SlackBody:
        """Call a method of Slack; raises as `Slack.call` does."""
        channel = str(arguments.get("channel") or "")
        if not (arguments.get("ts") or arguments.get("thread_ts")):
            return await slack.call(method, **arguments)
        at = self.found.get(channel, channel)
        try:
            return await slack.call(method, **{**arguments, "channel": at})
        except SlackRefused as error:
            if error.error != "channel_not_found":
                raise
            now = newest_id(channel, await self.look_up())
            if now == at:
                raise
            logger.info("channel.moved from=%s to=%s", channel, now)
            self.found[channel] = now
            return await slack.call(method, **{**arguments, "channel": now})


def newest_id(channel: str, moved: Mapping[str, str]) -> str:
    """Return the current id of a channel, which may have changed several times."""
    for _ in moved:
        channel = moved.get(channel, channel)
    return channel


PERMALINK = "chat.getPermalink"
"""Method that shows whether a message exists."""
