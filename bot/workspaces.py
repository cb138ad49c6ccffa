"""Serve several workspaces with one app: a `WorkspaceBot` for each installation.

Each workspace has its own tenant, policy and store connection. A delivery is handed to
the bot of the workspace in which the person acted, before anything else reads it. So
the listeners of one workspace get no delivery of another one.

A loop compares the stored installations with the running bots: it starts and stops
bots, gives them renewed tokens, and renews tokens. So several processes serve the same
installations.

People install the app by OAuth. Bolt's `AsyncOAuthFlow` serves the pages: a `state` is
used once, expires, and belongs to the browser with its cookie. Bolt's own authorization
is not used: it would ask Slack about the token for each request, and several processes
would renew one token at once, although Slack accepts a refresh token only once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from html import escape
from http import HTTPStatus
from typing import Any, NamedTuple, cast
from urllib.parse import urljoin

import aiohttp
from aiohttp import web
from prometheus_client import generate_latest
from slack_bolt.adapter.aiohttp import to_aiohttp_response
from slack_bolt.error import BoltError
from slack_bolt.oauth.async_callback_options import AsyncFailureArgs
from slack_bolt.oauth.async_oauth_flow import AsyncOAuthFlow
from slack_bolt.oauth.async_oauth_settings import AsyncOAuthSettings
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.request.internals import parse_body
from slack_bolt.response import BoltResponse
from slack_sdk.oauth.installation_store import Installation
from slack_sdk.oauth.installation_store.async_installation_store import (
    AsyncInstallationStore,
)
from slack_sdk.oauth.state_store.async_state_store import AsyncOAuthStateStore
from slack_sdk.web.async_client import AsyncWebClient
from typing_extensions import override

from keyturn.bot.app import WorkspaceBot, cancelled, quiet_slack_loggers
from keyturn.bot.ingress import Delivery, Ingress, Page, serve
from keyturn.bot.limits import Limits
from keyturn.bot.manifest import INSTALL_PATH, OPTIONAL, REDIRECT_PATH, SCOPES
from keyturn.bot.web import Slack, SlackBody, SlackError, SlackRefused, text_at
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.clock import now_s
from keyturn.gateway.config import Settings, text_of
from keyturn.gateway.errors import KeyturnError, StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.health import Health, serving_health
from keyturn.gateway.instruments import REGISTRY
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Pause between two reads of the stored installations."""

_DRAIN_S = 15.0

_REMOVALS = frozenset({"app_uninstalled", "tokens_revoked"})

_GONE = frozenset({"account_inactive", "token_revoked"})
"""Refusals of a token that mean the end of its installation.

Other refusals may concern a token that another process is renewing right now.
"""


class Workspace(NamedTuple):
    """A workspace of the settings, with or without an installation.

    Attributes:
        organization: id of its organization, whose installation serves it as well; ""
            for none.
        service: decides the approvals of its tenant.
        bot: makes its bot, for a token.
    """

    organization: str
    service: ReviewService
    bot: Callable[[str], WorkspaceBot]


@dataclass(frozen=True)
class _Running:
    """A running bot, with the installation and the bot user of its start."""

    bot: WorkspaceBot
    installation: str
    bot_user: str


class Workspaces:
    """The bots of all workspaces of one app.

    Args:
        workspaces: the workspaces of the settings, by id.
        installations: the installations of the app.
    """

    def __init__(
        self, workspaces: Mapping[str, Workspace], installations: Installations
    ) -> None:
        self._workspaces, self._installations = workspaces, installations
        self._running: dict[str, _Running] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, str] = {}
        self._store_problem = ""

    async def receive(self, delivery: Delivery) -> BoltResponse | None:
        """Answer a delivery by the bot of its workspace; see `handle_once`."""
        body = _parsed(delivery)
        if body is None:
            logger.warning("bot.unreadable request=%s", delivery.digest)
            return BoltResponse(status=HTTPStatus.BAD_REQUEST)
        team = team_of(body)
        if body.get("type") == "url_verification":
            return BoltResponse(status=200, body=str(body.get("challenge", "")))
        if text_at(body, "event", "type") in _REMOVALS:
            return await self._removed(body, team)
        running = self._running.get(team)
        if running is not None:
            placed = replace(delivery, body=_placed(body, team))
            return await running.bot.receive(placed)
        if team not in self._workspaces:
            logger.warning("workspace.not_served team=%s", team[:32])
            return BoltResponse(status=HTTPStatus.OK)
        # Slack repeats an event that is refused like this.
        self._installations.changed.set()
        return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def _removed(self, body: SlackBody, team: str) -> BoltResponse:
        """End the waiting calls in the workspaces of a removed installation.

        The event may be late, or about a token that was replaced since, so Slack is
        asked. Slack repeats the event until everything has ended.
        """
        try:
            found = await self._installations.all()
            for id_ in {team, str(body.get("enterprise_id"))} & found.keys():
                slack = self._installations.slack_of(found[id_])
                with suppress(SlackRefused):
                    await slack.test()
                if slack.token_error in _GONE:
                    await self._end(id_, found, slack.token_error)
        except (SlackError, StoreUnavailable) as error:
            log_failure(logger, error, "workspace.not_removed team=%s", team)
            return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)
        return BoltResponse(status=HTTPStatus.OK)

    async def _end(
        self, id_: str, found: Mapping[str, Installation], error: str
    ) -> None:
        for team, workspace in self._workspaces.items():
            if _serving(team, workspace, found) == id_:
                ended = await workspace.service.queue.end_without_reviewers()
                logger.warning("workspace.removed team=%s ended=%d", team, ended)
        # Last: until then, a repeated event ends the rest.
        await self._installations.remove(id_, found[id_], error)

    async def _follow(self) -> None:
        """Run the bots of the stored installations until it is cancelled."""
        changed = self._installations.changed
        try:
            while True:
                changed.clear()
                try:
                    await self._look()
                    self._store_problem = ""
                except StoreUnavailable as error:
                    self._store_problem = "The store does not answer."
                    log_failure(logger, error, "workspaces.not_read")
                except any_failure() as error:  # the loop has to go on
                    log_failure(logger, error, "workspaces.failed")
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_S)
        finally:
            await asyncio.gather(*map(cancelled, [*self._starting.values()]))
            await asyncio.gather(*map(self._stop, list(self._running)))

    async def _look(self) -> None:
        found = await self._installations.all()
        due = [id_ for id_, one in found.items() if _is_due(one)]
        if due:
            await _finished(asyncio.gather(*map(self._installations.renew, due)))
            found = await self._installations.all()
        self._installations.forget_refusals(due)
        for team, workspace in self._workspaces.items():
            id_ = _serving(team, workspace, found)
            running = self._running.get(team)
            if running and not _is_of(running, id_, found):
                await self._stop(team)
                running = None
            if running:
                running.bot.use_token(str(found[id_].bot_token))
            elif id_ and team not in self._starting:
                # In the background: one may wait for Slack for minutes.
                started = self._start(team, id_, found[id_])
                self._starting[team] = asyncio.create_task(started)

    async def _start(self, team: str, id_: str, of: Installation) -> None:
        try:
            bot = self._workspaces[team].bot(str(of.bot_token))
            await bot.__aenter__()
        except any_failure() as error:  # the other workspaces have to go on
            is_known = isinstance(error, KeyturnError)
            why = str(error) if is_known else "It did not start; see the bot's log."
            if self._failed.get(team) != why:
                log_failure(logger, error, "workspace.not_started team=%s", team)
            self._failed[team] = why
        else:
            self._failed.pop(team, None)
            self._running[team] = _Running(bot, id_, str(of.bot_user_id))
        finally:
            del self._starting[team]

    async def _stop(self, team: str) -> None:
        # Not served from now on, and then stopped.
        running = self._running.pop(team)
        await running.bot.__aexit__(None, None, None)
        logger.info("workspace.stopped team=%s", team)

    @asynccontextmanager
    async def serving(self, settings: Settings, store: Store) -> AsyncGenerator[None]:
        """Serve Slack and the installation pages while the block runs.

        Args:
            settings: of the bot.
            store: its clock is compared with Slack's timestamps.

        Raises:
            SettingsError: an address cannot be used; the message names the fix.
        """
        quiet_slack_loggers()
        slack, health_at = settings.slack, settings.metrics.listen
        health = Health(self._problems, self._facts, _metrics)
        ingress = Ingress(
            signing_secret=text_of(settings.signing_secret),
            receive=self.receive,
            health=health if health_at is None else None,
            pages=self._installations.pages,
            clock=store.conn.clock.now_s,
        )
        async with AsyncExitStack() as opening:
            following = asyncio.create_task(self._follow(), name="workspaces")
            opening.push_async_callback(cancelled, following)
            await serve(opening, ingress, slack)
            await opening.enter_async_context(serving_health(health_at, health))
            yield

    async def _problems(self) -> list[str]:
        """Return the problems that stop the bots of all workspaces, as sentences."""
        return [self._store_problem] if self._store_problem else []

    async def _facts(self) -> Mapping[str, object]:
        """Return the problems of single workspaces; the others continue."""
        # Together: while Slack is slow, each check takes seconds.
        found = await asyncio.gather(*map(self._problems_of, self._workspaces))
        each = zip(self._workspaces, found, strict=True)
        return {"workspaces": {team: why for team, why in each if why}}

    async def _problems_of(self, team: str) -> list[str]:
        page = self._installations.page
        running = self._running.get(team)
        if running is None:
            default = f"The app is not installed here; install it at {page}"
            if team in self._starting:
                default = "The bot starts here, or waits for Slack; see the bot's log."
            return [self._failed.get(team, default)]
        problems = await running.bot.problems()
        if code := self._installations.refused.get(running.installation):
            problems.append(
                f"Slack refused to renew the token ({code!r}), so it expires within "
                f"hours; install the app again at {page}"
            )
        return problems


async def _finished(work: asyncio.Future[Any]) -> None:
    """Wait for work, even if this process stops: Slack accepts a refresh token once."""
    try:
        await asyncio.shield(work)
    finally:
        # For longer than Slack's answer and a write to the store take.
        await asyncio.wait([work], timeout=_DRAIN_S)


async def _metrics() -> bytes:
    """Return the metrics of the process; gateways have those of their tenants."""
    return generate_latest(REGISTRY)


def _serving(team: str, workspace: Workspace, found: Mapping[str, Installation]) -> str:
    """Return the id of the installation that serves a workspace; "" for none."""
    ids = (team, workspace.organization)
    return next((id_ for id_ in ids if id_ in found), "")


def _is_of(running: _Running, id_: str, found: Mapping[str, Installation]) -> bool:
    """Return whether a bot only needs the newest token of an installation."""
    is_same = running.installation == id_
    return is_same and running.bot_user == str(found[id_].bot_user_id)


def _parsed(delivery: Delivery) -> SlackBody | None:
    """Return the payload of a delivery; None if it is unreadable."""
    content_type = delivery.headers.get("Content-Type", "").partition(";")[0]
    try:
        found = cast("object", parse_body(str(delivery.body), content_type))
    except ValueError:
        return None
    return cast("SlackBody", found) if isinstance(found, dict) else None


_PLACES = (("team", "id"), ("team_id",), ("view", "team_id"), ("user", "team_id"))
"""Places of the workspace's id in a payload. The first two can be missing only if a
whole organization installed the app.
"""


def team_of(body: SlackBody) -> str:
    """Return the workspace of a payload; "" without one."""
    # In a shared channel, `team_id` may be the workspace of another company.
    places = [text_at(one, "team_id") for one in _authorizations(body)[:1]]
    places += [text_at(body, *place) for place in _PLACES]
    return next(filter(None, places), "")


def _placed(body: SlackBody, team: str) -> dict[str, object]:
    """Return a payload that names its workspace where the listeners read it."""
    if authorizations := _authorizations(body):
        first, *rest = authorizations
        return {**body, "authorizations": [{**first, "team_id": team}, *rest]}
    is_named = text_at(body, "team", "id") or text_at(body, "team_id")
    return {**body} if is_named else {**body, "team": {"id": team}}


def _authorizations(body: SlackBody) -> list[SlackBody]:
    found = body.get("authorizations")
    each = cast("list[object]", found) if isinstance(found, list) else []
    return [cast("SlackBody", one) for one in each if isinstance(one, dict)]


RENEWED_BEFORE_MIN = 120
"""Minutes before the end of a token at which it is renewed."""

_AGAIN_S = 1.0

_FAILED: Mapping[str, str] = {
    "access_denied": "The installation was cancelled, so nothing was installed.",
    "invalid_browser": "This browser did not begin the installation, so nothing was "
    "installed.",
    "invalid_state": "This page was used before or is too old, so nothing was "
    "installed.",
}
"""Sentences about failures, by Bolt's and Slack's names."""

_NOT_INSTALLED = "The installation did not succeed, so nothing was installed."

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Keyturn</title></head>
<body><h1>Not installed</h1><p>{text} <a href="{page}">Try again</a></p></body></html>
"""


_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

_Handle = Callable[[AsyncBoltRequest], Awaitable[BoltResponse]]


class NotInstalled(BoltError):
    """An installation cannot be used; the text is a sentence for the person."""


class Installations(AsyncInstallationStore, AsyncOAuthStateStore):
    """The stored installations of one app.

    Args:
        store: keeps the installations.
        settings: of the bot; its tenant owns the installations.
        served: ids of the workspaces and organizations that may install the app.
        session: the caller closes it.

    Attributes:
        session: as given.
        refused: why Slack did not renew a token, by the installation's id.
        changed: set when a person installed the app.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        served: Collection[str],
        session: aiohttp.ClientSession,
    ) -> None:
        self._store = store.installations
        self._keys = store.keys_of_tenant(settings.tenant)
        self._slack, self._served, self.session = settings.slack, served, session
        self._limits = Limits(now_s)
        self.refused: dict[str, str] = {}
        self.changed = asyncio.Event()
        # A repeated exchange would be refused: codes and tokens are used once.
        client = AsyncWebClient(
            base_url=self._slack.api_url, session=session, retry_handlers=[]
        )
        id_, secret = self._slack.client_id, text_of(settings.client_secret)
        self._client = {"client_id": id_, "client_secret": secret}
        quiet = logging.getLogger("slack_bolt.keyturn.oauth")
        quiet.setLevel(logging.CRITICAL)  # it logs the code of a failed exchange
        self._flow = AsyncOAuthFlow(
            client=client,
            logger=quiet,
            settings=AsyncOAuthSettings(
                client_id=id_,
                client_secret=secret,
                scopes=SCOPES,
                user_scopes=[],
                redirect_uri=f"{self._slack.url}{REDIRECT_PATH}",
                authorization_url=urljoin(self._slack.api_url, "/oauth/v2/authorize"),
                installation_store=self,
                state_store=self,
            ),
        )
        self._flow.failure_handler = self._failed

    @property
    def page(self) -> str:
        """Return the address at which people install the app."""
        return f"{self._slack.url}{INSTALL_PATH}"

    @property
    def pages(self) -> dict[str, Page]:
        """Return the pages of the installation, by path."""
        return {
            INSTALL_PATH: partial(self._page, self._flow.handle_installation),
            REDIRECT_PATH: partial(self._page, self._flow.handle_callback),
        }

    async def all(self) -> dict[str, Installation]:
        """Return the installations by the id of their workspace or organization.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        found: dict[str, Installation] = {}
        for id_, stored in (await self._store.all(self._keys)).items():
            if (one := await self._read(id_, stored)) is not None:
                found[id_] = one
        return found

    def slack_of(self, installation: Installation) -> Slack:
        """Return Slack's Web API with the token of an installation."""
        token = str(installation.bot_token)
        return Slack(token, api_url=self._slack.api_url, session=self.session)

    async def remove(self, id_: str, removed: Installation, why: str) -> None:
        """Forget an installation, unless the app was installed again since.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        stored = (await self._store.all(self._keys)).get(id_, b"")
        found = await self._read(id_, stored) if stored else None
        if found is not None and found.bot_token == removed.bot_token:
            event = self._event(EventName.APP_REMOVED, id_).with_(reason=why)
            await self._store.write(self._keys, id_, "", event, seen=stored)
        self.changed.set()

    async def renew(self, id_: str) -> None:
        """Renew a token that expires soon, in one process; raises `StoreUnavailable`.

        If Slack refuses, the installation is kept, and `refused` has the reason.
        """
        if not await self._store.begin_renewal(self._keys, id_):
            return
        # Read again: another process may have renewed it since.
        stored = (await self._store.all(self._keys)).get(id_, b"")
        installation = await self._read(id_, stored) if stored else None
        if installation is None or not _is_due(installation):
            return
        slack = Slack("", api_url=self._slack.api_url, session=self.session)
        refresh = str(installation.bot_refresh_token)
        try:
            # Not by the SDK, which would lose the bot's new token if Slack refused to
            # renew the token of a person.
            reply = await slack.renew(refresh_token=refresh, **self._client)
        except SlackRefused as error:
            self.refused[id_] = error.error
            logger.error("installation.not_renewed id=%s error=%s", id_, error.error)  # noqa: TRY400 - Slack's code is the whole reason
        except SlackError as error:
            logger.warning("installation.not_renewed id=%s error=%s", id_, error)
        else:
            await self._keep(id_, _renewed(installation, reply), stored)

    def forget_refusals(self, due: Collection[str]) -> None:
        """Forget refusals of tokens that another process has renewed since."""
        self.refused = {id_: why for id_, why in self.refused.items() if id_ in due}

    async def _keep(self, id_: str, renewed: Installation, seen: bytes) -> None:
        """Store a renewed token, unless the app was installed again or removed."""
        while True:
            try:
                body = _json(renewed)
                await self._store.write(self._keys, id_, body, None, seen=seen)
            except StoreUnavailable as error:
                # Slack has revoked the earlier refresh token: this one is the only one.
                log_failure(logger, error, "installation.not_kept id=%s", id_)
                await asyncio.sleep(_AGAIN_S)
            else:
                logger.info("installation.renewed id=%s", id_)
                return

    async def _read(self, id_: str, stored: bytes) -> Installation | None:
        body = await self._store.decrypted(self._keys, id_, stored)
        return None if body is None else Installation(**json.loads(body))

    def _event(self, name: EventName, id_: str) -> Event:
        data = {"installation": id_}
        return Event(name=name, tenant=self._keys.tenant, data=data)

    @override
    async def async_save(self, installation: Installation) -> None:
        """Keep a new installation, in place of an earlier one.

        Raises:
            NotInstalled: the settings do not name the workspace, or rights are missing;
                nothing is kept.
        """
        id_ = str(installation.team_id or "")
        if installation.is_enterprise_install:
            id_ = str(installation.enterprise_id or "")
        if id_ not in self._served:
            logger.error("installation.not_served id=%s", id_)
            # Otherwise Slack would show the app as installed.
            with suppress(SlackError):
                await self.slack_of(installation).call("auth.revoke")
            raise NotInstalled(
                f"This Keyturn does not serve {id_}, so nothing was installed. "
                "Ask its operator to add the workspace to 'slack.workspaces'."
            )
        # The person's browser names the scopes: fewer would replace a working token.
        lacking = {*SCOPES} - {*OPTIONAL} - {*(installation.bot_scopes or ())}
        if lacking or not installation.bot_token:
            logger.error("installation.lacks_scopes id=%s", id_)
            raise NotInstalled(
                f"Slack did not grant {', '.join(sorted(lacking)) or 'a bot token'}, "
                "so nothing was installed."
            )
        event = self._event(EventName.APP_INSTALLED, id_)
        event = event.with_(actor=f"{id_}/{installation.user_id}")
        # The browser may have named scopes of the person, too.
        installation.user_token = installation.user_refresh_token = None
        await self._store.write(self._keys, id_, _json(installation), event)
        self.changed.set()
        logger.info("installation.made id=%s", id_)

    @override
    async def async_issue(self, *args: Any, **kwargs: Any) -> str:
        """Return a new state."""
        state = secrets.token_urlsafe(32)
        await self._store.add_state(self._keys, state)
        return state

    @override
    async def async_consume(self, state: str) -> bool:
        """Return whether a state is valid; it is valid once."""
        return await self._store.use_state(self._keys, state)

    async def _page(
        self, handle: _Handle, request: web.BaseRequest
    ) -> web.StreamResponse:
        # The pages are public, and each request writes to the store or asks Slack. All
        # requests come from the address of the proxy that Slack's HTTPS needs.
        if self._limits.take(request.path):
            text = "There are too many installations now; try again in a minute.\n"
            return web.Response(status=HTTPStatus.TOO_MANY_REQUESTS, text=text)
        asked = AsyncBoltRequest(
            body="", query=request.query_string, headers={**request.headers}
        )
        try:
            response = await to_aiohttp_response(await handle(asked))
        except (StoreUnavailable, aiohttp.ClientError, TimeoutError, OSError) as error:
            log_failure(logger, error, "installation.failed")
            text = "Slack or the store does not answer, so nothing was installed.\n"
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=text)
        # No other page may show this one inside it, or learn its address with the code.
        response.headers.update(_HEADERS)
        return response

    async def _failed(self, args: AsyncFailureArgs) -> BoltResponse:
        logger.warning("installation.failed why=%s", args.reason[:80])
        text = _FAILED.get(args.reason, _NOT_INSTALLED)
        if isinstance(args.error, NotInstalled):
            text = str(args.error)
        cookie = args.settings.state_utils.build_set_cookie_for_deletion()
        return BoltResponse(
            status=args.suggested_status_code,
            headers={"Content-Type": "text/html", "Set-Cookie": cookie},
            body=_PAGE.format(text=escape(text), page=escape(self.page)),
        )


def _is_due(installation: Installation) -> bool:
    soon = time.time() + RENEWED_BEFORE_MIN * 60  # noqa: TID251 - as the SDK's times
    return (installation.bot_token_expires_at or soon) < soon


def _renewed(installation: Installation, reply: SlackBody) -> Installation:
    """Return an installation with the new tokens of Slack's reply."""
    ends_in_s = cast("int", reply["expires_in"])
    found = Installation(**installation.to_dict_for_copying())
    found.bot_token = text_at(reply, "access_token")
    found.bot_refresh_token = text_at(reply, "refresh_token")
    found.bot_token_expires_at = int(time.time()) + ends_in_s  # noqa: TID251 - likewise
    return found


def _json(installation: Installation) -> str:
    return json.dumps(installation.to_dict_for_copying(), default=datetime.isoformat)
