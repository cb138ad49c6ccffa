"""Client for Slack's Web API: one error type per kind of failure.

It also finds a conversation that moved to another channel id.

At start the bot asks for its identity (``auth.test``), and later checks its token.
Every response shows whether the token works. A bot without recent calls requests
``auth.test`` at most once in `CHECKED_S`, so health checks do not use up the limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple, TypeVar, cast

import aiohttp
from slack_sdk.web.internal_utils import get_user_agent

from keyturn.bot.config import BotConfig
from keyturn.bot.manifest import OPTIONAL, SCOPES
from keyturn.bot.text import link_url
from keyturn.gateway.errors import KeyturnError, SettingsError
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


def _settle(method: str, failure: SlackError | None) -> None:
    """Count a call, and raise its failure, if any."""
    SLACK_CALLS.labels(method, failure.result if failure else "ok").inc()
    if failure is not None:
        raise failure


class Slack:
    """Slack's Web API through one shared connection pool.

    Nothing is retried here, because only the caller can decide whether a call may be
    repeated. (The SDK's own retry repeats ``chat.postMessage`` after a lost answer.)
    The calls use the session directly, since those of the SDK take twice the processor
    time.

    Args:
        token: the bot's; "" for `renew`, which needs none.
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
        self.team = self.workspace_url = ""
        self._token: str | None = None
        self.use_token(token)

    def use_token(self, token: str) -> None:
        """Use a token; for another one, Slack's answers about the last one are void."""
        if token == self._token:
            return
        self._token = token
        self._headers = {"User-Agent": get_user_agent()}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
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

    async def renew(self, **form: str) -> SlackBody:
        """Renew a token by ``oauth.v2.access``; raises as `call` does."""
        form["grant_type"], method = "refresh_token", "oauth.v2.access"
        found = (await self._response(method, form=form)).body
        if not found.keys() >= {"access_token", "refresh_token", "expires_in"}:
            raise SlackNoResponse(method, "an answer without a token")
        return found

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
        _settle("response_url", failure)

    async def _response(
        self,
        method: str,
        *,
        json: dict[str, object] | None = None,
        params: dict[str, str] | None = None,
        form: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> _Response:
        # Without the charset Slack adds a warning to its answer.
        kind = {"Content-Type": "application/json;charset=utf-8"} if json else {}
        response = await self._exchange(
            method,
            "GET" if params is not None else "POST",
            f"{self._api_url}{method}",
            body=json,
            form=form,
            params=params,
            headers=self._headers | kind | (headers or {}),
        )
        is_taken = response.status == HTTPStatus.OK and bool(response.body.get("ok"))
        failure = None if is_taken else _failure_of(method, response)
        # A call with separate headers uses the app-level token (`open_socket`), which
        # does not concern the bot's. Any other answer shows that the token works.
        if headers is None and (is_taken or isinstance(failure, SlackRefused)):
            told = failure.error if isinstance(failure, SlackRefused) else ""
            self.token_error = told if told in TOKEN_ERRORS else ""
        _settle(method, failure)
        return response

    async def _exchange(
        self,
        method: str,
        verb: str,
        url: str,
        *,
        body: Mapping[str, object] | None = None,
        form: Mapping[str, str] | None = None,
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
                    data=form,
                    params=params,
                    headers=headers,
                    allow_redirects=False,
                ) as response,
            ):
                text = (await response.text(errors="replace")).strip()
                return _Response(_object(text), text, response.status, response.headers)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = SlackNoResponse(method, f"no answer ({type(error).__name__})")
            SLACK_CALLS.labels(method, failure.result).inc()
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


START_WITHIN_S = 120.0
"""Time in which a starting bot retries while Slack does not answer."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's identity in Slack."""

    team: str
    enterprise: str
    user: str
    bot_id: str


async def identify(slack: Slack, config: BotConfig) -> Identity:
    """Ask Slack for the bot's identity and scopes.

    Raises:
        SettingsError: the token is wrong, of another workspace or of an unexpected
            organization, or lacks scopes; or Slack does not answer in time.
    """
    try:
        reply, granted = await ask_until_answered(slack.test, config)
    except SlackRefused as error:
        if config.install_url:
            raise SettingsError(token_problem(config, error.error)) from error
        raise SettingsError(
            f"Slack refused SLACK_BOT_TOKEN ({error.error!r}); copy the Bot User OAuth "
            "Token (xoxb-…) from api.slack.com/apps, 'OAuth & Permissions'."
        ) from error
    # A missing header does not prevent the start: a missing scope shows in the first
    # call that needs it (`missing_scope`).
    missing: list[str] = sorted(set(SCOPES) - granted) if granted else []
    # An app installed before these scopes were added continues to work.
    for scope in OPTIONAL.keys() & missing:
        logger.warning("%s scope=%s", OPTIONAL[scope], scope)
        missing.remove(scope)
    if missing:
        raise SettingsError(
            f"The bot token lacks the scopes {', '.join(missing)}; add them on "
            "api.slack.com/apps, 'OAuth & Permissions' (or paste manifest.yml again), "
            "and install the app again."
        )
    team, enterprise = text_at(reply, "team_id"), text_at(reply, "enterprise_id")
    if config.install_url and config.organization == enterprise != "":
        # Slack names the organization instead of a workspace.
        is_of_organization = reply.get("is_enterprise_install") is True
        team = slack.team = config.team if is_of_organization else team
    else:
        check_one_workspace(reply)
    if config.team and team != config.team:
        raise SettingsError(
            f"The bot token is of the workspace {team!r}, the settings want "
            f"{config.team!r}; use the token of that workspace."
        )
    return Identity(
        team=team,
        enterprise=enterprise,
        user=text_at(reply, "user_id"),
        bot_id=text_at(reply, "bot_id"),
    )


def token_problem(config: BotConfig, error: str) -> str:
    """Return why the bot cannot work with its token, and what to do."""
    if config.install_url:
        return (
            f"Slack does not accept the bot's token any more ({error!r}); install the "
            f"app again at {config.install_url}"
        )
    return (
        f"Slack does not accept SLACK_BOT_TOKEN any more ({error!r}); install the app "
        "again, set the new token and start the bot again."
    )


def check_one_workspace(reply: SlackBody) -> None:
    """Refuse an app that is installed for a whole organization (Enterprise Grid).

    Its clicks come from workspaces other than the token's, and each would be refused as
    a stranger's.

    Raises:
        SettingsError: it is; the message explains how to install it instead.
    """
    if reply.get("is_enterprise_install") is True:
        raise SettingsError(
            "The app is installed for a whole organization; Keyturn serves one "
            "workspace. Install it in the workspace where people review, and use the "
            "Bot User OAuth Token of that installation as SLACK_BOT_TOKEN."
        )


async def ask_until_answered(ask: Callable[[], Awaitable[T]], config: BotConfig) -> T:
    """Ask Slack until it answers, because it may be unreachable while the bot starts.

    Raises:
        SlackRefused: Slack answered, and refused.
        SettingsError: no answer within `START_WITHIN_S`; the message names the checks.
    """
    deadline, pause_s = time.monotonic() + START_WITHIN_S, _FIRST_PAUSE_S
    while True:
        try:
            return await ask()
        except SlackError as error:
            # A refusal is an answer: the token is wrong, and a retry would not change
            # that. Refusals of the whole workspace pass.
            if isinstance(error, SlackRefused) and error.error not in WORKSPACE_ERRORS:
                raise
            wait_s = error.retry_after_s if isinstance(error, RateLimited) else pause_s
            silent = SettingsError(
                f"Slack does not answer at {config.api_url!r} ({error}); check the "
                "network, the proxy, slack-status.com, and 'slack.api_url' "
                "(KEYTURN_SLACK_API_URL)."
            )
            # Checked before the pause: a Retry-After beyond the deadline is reported
            # immediately.
            if time.monotonic() + wait_s > deadline:
                raise silent from error
            logger.warning("bot.waits_for_slack again_in_s=%.1f why=%s", wait_s, silent)
        await asyncio.sleep(wait_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


CHECKED_S = 60.0
REJECTED_S = 10.0
"""Seconds until a rejected token is tried again."""


class BotToken:
    """Whether the bot's token works, by Slack's last answer.

    Args:
        slack: makes calls with the token, and keeps Slack's last answer about it.
        config: settings with the source of the token.
        clock: seconds, monotonic.
    """

    def __init__(
        self, slack: Slack, config: BotConfig, *, clock: Callable[[], float]
    ) -> None:
        self._slack = slack
        self._config = config
        self._clock = clock
        # As if checked: `identify` has just called auth.test when the bot starts.
        self._checked_at = clock()

    async def problem(self) -> str:
        """Return why the bot cannot work with its token, as a sentence, or ""."""
        wait_s = REJECTED_S if self._slack.token_error else CHECKED_S
        if self._clock() - self._checked_at >= wait_s:
            await self._check()
        error = self._slack.token_error
        return token_problem(self._config, error) if error else ""

    async def lost(self, event: str) -> None:
        """Record an event about the loss of the token, and ask Slack.

        The event may be late, or about a token that was replaced since.
        """
        # Before the request, so that the health check shows it even while Slack is
        # unreachable.
        self._slack.token_error = event
        await self._check()
        if self._slack.token_error:
            logger.error("bot.token_lost event=%s", event)

    async def _check(self) -> None:
        self._checked_at = self._clock()
        # The call itself stores Slack's answer about the token.
        with suppress(SlackError):
            await self._slack.test()
