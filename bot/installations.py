"""Install the app in workspaces by OAuth, and renew its tokens.

Bolt's `AsyncOAuthFlow` serves the pages: a `state` is used once, expires, and belongs
to the browser with its cookie. Bolt's own authorization is not used: it would ask Slack
about the token for each request, and several processes would renew one token at once,
although Slack accepts a refresh token only once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from html import escape
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urljoin

import aiohttp
from aiohttp import web
from slack_bolt.adapter.aiohttp import to_aiohttp_response
from slack_bolt.error import BoltError
from slack_bolt.oauth.async_callback_options import AsyncFailureArgs
from slack_bolt.oauth.async_oauth_flow import AsyncOAuthFlow
from slack_bolt.oauth.async_oauth_settings import AsyncOAuthSettings
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse
from slack_sdk.errors import SlackTokenRotationError
from slack_sdk.oauth.installation_store import Installation
from slack_sdk.oauth.installation_store.async_installation_store import (
    AsyncInstallationStore,
)
from slack_sdk.oauth.state_store.async_state_store import AsyncOAuthStateStore
from slack_sdk.oauth.token_rotation.async_rotator import AsyncTokenRotator
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse
from typing_extensions import override

from keyturn.bot.ingress import Page
from keyturn.bot.limits import Limits
from keyturn.bot.manifest import INSTALL_PATH, OPTIONAL, REDIRECT_PATH, SCOPES
from keyturn.bot.web import Slack, SlackError
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.clock import now_s
from keyturn.gateway.config import Settings, text_of
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.failures import log_failure
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

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
        self._rotator = AsyncTokenRotator(
            client=client, client_id=id_, client_secret=secret
        )
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
        if installation is None:
            return
        try:
            renewed = await self._rotator.perform_token_rotation(
                installation=installation, minutes_before_expiration=RENEWED_BEFORE_MIN
            )
        except SlackTokenRotationError as error:
            body = cast("AsyncSlackResponse", error.api_error.response)
            code = self.refused[id_] = str(body.get("error", "no answer"))
            # Without the traceback: Slack's code is the whole reason.
            logger.error("installation.not_renewed id=%s error=%s", id_, code)  # noqa: TRY400
            return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.warning("installation.not_renewed id=%s error=%r", id_, error)
            return
        if renewed is not None:
            await self._keep(id_, renewed, stored)

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
        # The pages are public, and each request writes to the store or asks Slack.
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


def _json(installation: Installation) -> str:
    return json.dumps(installation.to_dict_for_copying(), default=datetime.isoformat)
