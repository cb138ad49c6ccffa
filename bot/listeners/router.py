"""Register listeners with Bolt; turn every exception into a private message.

A listener gets a typed record and may raise `UserFacingError`. Any other exception is
logged and answered with a sentence: an exception that left a listener would be a 500,
and Slack does not deliver an interaction twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Protocol, TypeVar

from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse

from twokey.bot import payload
from twokey.bot.blocks import notice
from twokey.bot.ids import Action, View, chosen
from twokey.bot.interactions import Clicked, Submitted
from twokey.bot.listener_context import (
    ListenerContext,
    NoRecord,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from twokey.bot.payload import BadPayload, Command, Json
from twokey.bot.text_types import label
from twokey.gateway.errors import CorruptRecord, NewerRecord, StoreUnavailable
from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)

DIGEST = "twokey_digest"
RECORDED = "twokey_recorded"
"""Names under which the ingress says what it knows of a request."""

LISTENER_TIMEOUT_S = 2.6
"""How long a listener may take; Slack waits 3 s."""

NOT_RECORDED = label(
    "The gateway cannot keep anything right now, so nothing was recorded. Please try "
    "again in a moment."
)
NOT_CONFIRMED = label(
    "This took too long, so it is not confirmed. Please look at the card: it shows "
    "what is recorded."
)
CORRUPT = label(
    "The record of this approval is corrupt, so nothing was recorded and nothing "
    "of it will run. Please tell the gateway's operator; the agent can ask again."
)
NEWER = label(
    "A newer version of Twokey wrote this approval than the one that runs now, so "
    "nothing was recorded. Nothing of it is lost: it can be decided as soon as the "
    "newer version runs again. Please tell the gateway's operator."
)
BROKEN = label(
    "Something went wrong on our side, so this is not confirmed. Please look at the "
    "card: it shows what is recorded. The bot's operator finds the cause in its log."
)

_TITLE = label("Not done")

T = TypeVar("T")
AckBody = Mapping[str, object]
Context = Mapping[str, object]


OnClick = Callable[[ListenerContext, Clicked], Awaitable[UserText | None]]
"""Returns a sentence for the person, or None when there is nothing to say."""

OnSubmit = Callable[[ListenerContext, Submitted], Awaitable[AckBody]]
"""Returns how Slack changes the modal (its ``response_action``)."""

OnCommand = Callable[[ListenerContext, Command], Awaitable[AckBody]]
OnEvent = Callable[[ListenerContext, Json], Awaitable[None]]

_Listener = Callable[[dict[str, object], Context], Awaitable[BoltResponse]]
_Register = Callable[[_Listener], object]


class Bolt(Protocol):
    """What we use of Bolt's app, with types (its own are partial)."""

    async def async_dispatch(self, req: AsyncBoltRequest) -> BoltResponse:
        """Answer a request."""
        ...

    def action(self, constraints: str | re.Pattern[str]) -> _Register:
        """Register for clicks."""
        ...

    def view_submission(self, constraints: str | re.Pattern[str]) -> _Register:
        """Register for submitted modals."""
        ...

    def command(self, command: str) -> _Register:
        """Register for a slash command."""
        ...

    def event(self, event: str | re.Pattern[str]) -> _Register:
        """Register for events."""
        ...


def _readable(listener: _Listener) -> _Listener:
    """Let a listener have what it can read; the rest is logged and acknowledged."""

    async def readable(body: dict[str, object], context: Context) -> BoltResponse:
        """Answer one payload."""
        try:
            return await listener(body, context)
        except BadPayload as error:
            # The place only: a payload may hold what people typed. Acknowledged, since
            # a payload of the same shape cannot be read the second time either.
            logger.warning("listener.bad_payload place=%s", error.place)
            return BoltResponse(status=HTTPStatus.OK, body="")

    return readable


class Router:
    """Where listeners are registered; the first that matches gets the payload."""

    def __init__(self, app: Bolt, ctx: ListenerContext) -> None:
        self._bolt = app
        self._ctx = ctx
        self._actions: dict[str, OnClick] = {}
        self._no_record: OnClick | None = None
        self._no_record_of_form: OnSubmit | None = None

    def on_action(self, action: Action | re.Pattern[str], handle: OnClick) -> None:
        """Call this for clicks on the buttons with this ``action_id``."""

        @_readable
        async def listener(body: dict[str, object], context: Context) -> BoltResponse:
            """Answer one click."""
            click = Clicked(payload.block_action(body), _digest(context))
            try:
                message = await _guarded(lambda: self._handled(handle, click), context)
            except UserFacingError as error:
                message = error.message
            if message:
                self._ctx.reply_to_click(click, message)
            return BoltResponse(status=HTTPStatus.OK, body="")

        self._bolt.action(action)(listener)
        if isinstance(action, Action):
            self._actions[action] = handle

    def on_no_record(self, click: OnClick, submit: OnSubmit) -> None:
        """Call these where no approval is known; they raise `NoRecord` as well."""
        self._no_record, self._no_record_of_form = click, submit

    async def _handled(self, handle: OnClick, click: Clicked) -> UserText | None:
        try:
            return await handle(self._ctx, click)
        except NoRecord:
            if self._no_record is None:
                raise
            return await self._no_record(self._ctx, click)

    async def _submitted(self, handle: OnSubmit, submitted: Submitted) -> AckBody:
        try:
            return await handle(self._ctx, submitted)
        except NoRecord:
            if self._no_record_of_form is None:
                raise
            return await self._no_record_of_form(self._ctx, submitted)

    def on_menu(self, menu: Action, unknown: OnClick) -> None:
        """Handle an action chosen in this menu as a click on its own button."""

        async def handle(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
            name, value = chosen(clicked.action.value)
            action = replace(clicked.action, action_id=name, value=value)
            # Not itself: a value that names the menu would name it again and again.
            found = unknown if name == menu else self._actions.get(name, unknown)
            return await found(ctx, replace(clicked, action=action))

        self.on_action(menu, handle)

    def on_submit(self, view: View | re.Pattern[str], handle: OnSubmit) -> None:
        """Call this when a modal with this ``callback_id`` is submitted."""

        @_readable
        async def listener(body: dict[str, object], context: Context) -> BoltResponse:
            """Answer one submission."""
            submitted = Submitted(payload.view_submission(body), _digest(context))
            try:
                reply = await _guarded(
                    lambda: self._submitted(handle, submitted), context
                )
            except UserFacingError as error:
                reply = {
                    "response_action": "update",
                    "view": notice(_TITLE, error.message),
                }
            return _answer(reply)

        self._bolt.view_submission(view)(listener)

    def on_command(self, handle: OnCommand) -> None:
        """Call this for the slash command; its answer is shown to the person alone."""

        @_readable
        async def listener(body: dict[str, object], context: Context) -> BoltResponse:
            """Answer one command."""
            asked = payload.command(body)
            try:
                reply = await _guarded(lambda: handle(self._ctx, asked), context)
            except UserFacingError as error:
                reply = {"text": to_mrkdwn(error.message)}
            return _answer({"response_type": "ephemeral", **reply})

        self._bolt.command(self._ctx.config.command)(listener)

    def on_event(self, event: str | re.Pattern[str], handle: OnEvent) -> None:
        """Call this for events of this type; Slack repeats what was not kept."""

        @_readable
        async def listener(body: dict[str, object], context: Context) -> BoltResponse:
            """Answer one event."""
            try:
                await _guarded(lambda: handle(self._ctx, body), context)
            except UserFacingError as error:
                # Slack repeats an event that is answered with an error, up to three
                # times. Only these two may go better then; any other refusal would come
                # again.
                if error.message in {NOT_RECORDED, NOT_CONFIRMED}:
                    return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE, body="")
            return BoltResponse(status=HTTPStatus.OK, body="")

        self._bolt.event(event)(listener)


async def _guarded(work: Callable[[], Awaitable[T]], context: Context) -> T:
    """Let a listener work; whatever goes wrong in it ends as `UserFacingError`."""
    # Missing means no: a request that reached Bolt by any way but the ingress decides
    # nothing.
    if not context.get(RECORDED, False):
        raise UserFacingError(NOT_RECORDED)
    try:
        # A listener that is cut off here may have written its decision already, so the
        # sentence says "not confirmed" and never "not recorded".
        async with asyncio.timeout(LISTENER_TIMEOUT_S):
            return await work()
    except (UserFacingError, BadPayload):
        raise
    # Before StoreUnavailable, of which it is a kind: trying again in a moment would not
    # help, only the newer version does.
    except NewerRecord as error:
        logger.warning("listener.newer_record why=%s", error)
        raise UserFacingError(NEWER) from None
    except StoreUnavailable:
        logger.warning("listener.unrecorded why=store_unavailable")
        raise UserFacingError(NOT_RECORDED) from None
    except TimeoutError:
        logger.warning("listener.slow patience_s=%s", LISTENER_TIMEOUT_S)
        raise UserFacingError(NOT_CONFIRMED) from None
    except CorruptRecord as error:
        log_failure(logger, error, "listener.corrupt_record")
        raise UserFacingError(CORRUPT) from None
    except Exception as error:  # noqa: BLE001 - Slack needs an answer
        log_failure(logger, error, "listener.failed")
        raise UserFacingError(BROKEN) from None


def _digest(context: Context) -> str:
    return str(context.get(DIGEST, ""))


def _answer(reply: AckBody) -> BoltResponse:
    return BoltResponse(status=HTTPStatus.OK, body=dict(reply))
