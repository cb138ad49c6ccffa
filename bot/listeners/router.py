"""Register listeners with Bolt; turn every exception into a private message.

Bolt has one listener for all clicks and one for all submitted modals. They look up the
bot's listeners in a table, by ``action_id`` and ``callback_id``.

A listener gets a typed record and may raise `UserFacingError`. Any other exception is
logged and answered with a sentence: otherwise the response would be a 500, and Slack
does not deliver an interaction twice.
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

from keyturn.bot import payload
from keyturn.bot.blocks import notice
from keyturn.bot.ids import Action, View, chosen
from keyturn.bot.ingress import ANSWER_WITHIN_S, Delivery, deadline
from keyturn.bot.listener_context import (
    ListenerContext,
    NoRecord,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from keyturn.bot.payload import BadPayload, Clicked, Command, Json, Submitted
from keyturn.bot.text import label, template
from keyturn.gateway.errors import (
    CorruptRecord,
    NotConfirmed,
    StoreUnavailable,
    Unanswered,
)
from keyturn.gateway.failures import any_failure, log_failure

logger = logging.getLogger(__name__)

NOT_RECORDED = label(
    "The gateway cannot keep anything right now, so nothing was recorded. Please try "
    "again in a moment."
)
NOT_CONFIRMED = label(
    "It is not confirmed that this is recorded. Please look at the card in a moment: "
    "it shows what is."
)
UNCONFIRMED = label(
    "This is recorded, but no replica of the store has confirmed it, so it may yet be "
    "lost. Please look at the card in a moment, and try again where it shows nothing."
)
CORRUPT = label(
    "The record of this approval is corrupt, so nothing was recorded and nothing "
    "of it will run. Please tell the gateway's operator; the agent can ask again."
)
BROKEN = label(
    "Something went wrong on our side, so this is not confirmed. Please look at the "
    "card: it shows what is recorded. The bot's operator finds the cause in its log."
)

T = TypeVar("T")


async def guarded(work: Callable[[], Awaitable[T]], delivery: Delivery) -> T:
    """Run a listener; turn every failure into a `UserFacingError`."""
    if not delivery.is_recorded:
        raise UserFacingError(NOT_RECORDED)
    try:
        # A listener that times out here may have written its decision already, so the
        # sentence is "not confirmed" and never "not recorded".
        async with asyncio.timeout_at(delivery.until_s):
            return await work()
    except (UserFacingError, BadPayload):
        raise
    except Unanswered as error:
        logger.warning("listener.unanswered why=%s", error)
        raise UserFacingError(NOT_CONFIRMED) from None
    except NotConfirmed:
        logger.warning("listener.unconfirmed")
        raise UserFacingError(UNCONFIRMED) from None
    except StoreUnavailable:
        logger.warning("listener.unrecorded why=store_unavailable")
        raise UserFacingError(NOT_RECORDED) from None
    except TimeoutError:
        logger.warning("listener.slow patience_s=%s", ANSWER_WITHIN_S)
        raise UserFacingError(NOT_CONFIRMED) from None
    except CorruptRecord as error:
        log_failure(logger, error, "listener.corrupt_record")
        raise UserFacingError(CORRUPT) from None
    except any_failure() as error:  # Slack needs an answer
        log_failure(logger, error, "listener.failed")
        raise UserFacingError(BROKEN) from None


DELIVERY = "keyturn_delivery"
"""Key of the `Delivery` in Bolt's context."""

CONFIRM_EVERY_S = 1.0
CONFIRM_TRIES = 60
"""Interval and number of the retries of a click that no replica has confirmed."""

TRYING_AGAIN = label(
    "This is recorded, but no replica of the store has confirmed it yet. Trying again; "
    "you will be told."
)
CONFIRMED = label("What you clicked is recorded and confirmed now.")
_OF_COMMANDS: Mapping[UserText, UserText] = {
    NOT_CONFIRMED: label(
        "The answer took too long, so it is not confirmed that anything was done. "
        "Please send the command again in a moment."
    ),
    UNCONFIRMED: label(
        "This is recorded, but no replica of the store has confirmed it, so it may yet "
        "be lost. Please send the command again in a moment."
    ),
    BROKEN: label(
        "Something went wrong on our side, so it is not confirmed that anything was "
        "done. Please send the command again in a moment. The bot's operator finds "
        "the cause in its log."
    ),
}
"""Replies to a command in place of sentences that mention a card."""
_TITLE = label("Not done")
_ANY = re.compile("")

AckBody = Mapping[str, object]
Context = Mapping[str, object]


OnClick = Callable[[ListenerContext, Clicked], Awaitable[UserText | None]]
"""Returns a sentence for the person, or None."""


OnSubmit = Callable[[ListenerContext, Submitted], Awaitable[AckBody]]
"""Returns how Slack changes the modal (its ``response_action``)."""

OnCommand = Callable[[ListenerContext, Command], Awaitable[AckBody]]
OnEvent = Callable[[ListenerContext, Json], Awaitable[None]]

_Listener = Callable[[Json, Delivery], Awaitable[BoltResponse]]
_OfBolt = Callable[[dict[str, object], Context], Awaitable[BoltResponse]]
_Register = Callable[[_OfBolt], object]


class Bolt(Protocol):
    """The parts of Bolt's app used here, with types (its own are partial)."""

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


def _of_bolt(listener: _Listener) -> _OfBolt:
    """Return a listener as Bolt calls it."""

    async def answer(body: dict[str, object], context: Context) -> BoltResponse:
        """Answer one payload."""
        delivery = context.get(DELIVERY)
        # A request that reached Bolt without the ingress must not decide anything.
        if not isinstance(delivery, Delivery):
            delivery = Delivery(body, {}, "", is_recorded=False)
        try:
            return await listener(body, delivery)
        except BadPayload as error:
            # Only the path is logged: a payload may contain people's text.
            # Acknowledged, because a payload of the same shape is unreadable the second
            # time, too.
            logger.warning("listener.bad_payload place=%s", error.place)
            return BoltResponse(status=HTTPStatus.OK)

    return answer


class Router:
    """Registers listeners, each for one kind of request."""

    def __init__(self, app: Bolt, ctx: ListenerContext) -> None:
        self._bolt = app
        self._ctx = ctx
        self._clicks: dict[str, OnClick] = {}
        self._submits: dict[str, OnSubmit] = {}
        self._no_record: OnClick | None = None
        self._no_record_of_form: OnSubmit | None = None

    def on_action(self, action: Action, handle: OnClick) -> None:
        """Register for clicks on the buttons with this ``action_id``."""
        _add(self._clicks, action, handle)

    def on_submit(self, view: View, handle: OnSubmit) -> None:
        """Register for submissions of the modal with this ``callback_id``."""
        _add(self._submits, view, handle)

    def on_unknown(self) -> None:
        """Answer all clicks and modals, also unknown ones; call this last."""
        self._on_menu(Action.MORE)

        async def clicked(body: Json, delivery: Delivery) -> BoltResponse:
            found = Clicked(payload.block_action(body), delivery.digest)
            handle = self._clicks.get(found.action.action_id, _unknown_click)
            return await self._click(handle, found, delivery)

        async def submitted(body: Json, delivery: Delivery) -> BoltResponse:
            found = Submitted(payload.view_submission(body), delivery.digest)
            handle = self._submits.get(found.view.callback_id, _unknown_form)
            return await self._submit(handle, found, delivery)

        self._bolt.action(_ANY)(_of_bolt(clicked))
        self._bolt.view_submission(_ANY)(_of_bolt(submitted))
        self.on_event(_ANY, _unknown_event)

    def on_no_record(self, click: OnClick, submit: OnSubmit) -> None:
        """Register for unknown approvals; these raise `NoRecord` as well."""
        self._no_record, self._no_record_of_form = click, submit

    def _on_menu(self, menu: Action) -> None:
        """Handle an action chosen in this menu as a click on its own button."""

        async def handle(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
            name, value = chosen(clicked.action.value)
            action = replace(clicked.action, action_id=name, value=value)
            # Without the menu itself: a value that names the menu would recurse without
            # end.
            known = {} if name == menu else self._clicks
            found = known.get(name, _unknown_click)
            return await found(ctx, replace(clicked, action=action))

        self.on_action(menu, handle)

    def on_command(self, handle: OnCommand) -> None:
        """Register for the slash command; only its author sees the reply."""

        async def listener(body: Json, delivery: Delivery) -> BoltResponse:
            asked = replace(payload.command(body), digest=delivery.digest)
            try:
                reply = await guarded(lambda: handle(self._ctx, asked), delivery)
            except UserFacingError as error:
                said = _OF_COMMANDS.get(error.message, error.message)
                reply = {"text": to_mrkdwn(said)}
            return _json({"response_type": "ephemeral", **reply})

        self._bolt.command(self._ctx.config.command)(_of_bolt(listener))

    def on_event(self, event: str | re.Pattern[str], handle: OnEvent) -> None:
        """Register for events of this type; Slack repeats unstored events."""

        async def listener(body: Json, delivery: Delivery) -> BoltResponse:
            try:
                await guarded(lambda: handle(self._ctx, body), delivery)
            except UserFacingError as error:
                # Slack repeats an event that is answered with an error, up to three
                # times. A repetition helps only after these refusals.
                if error.message in {NOT_RECORDED, NOT_CONFIRMED, UNCONFIRMED}:
                    return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)
            return BoltResponse(status=HTTPStatus.OK)

        self._bolt.event(event)(_of_bolt(listener))

    async def _click(
        self, handle: OnClick, click: Clicked, delivery: Delivery
    ) -> BoltResponse:
        if delivery.is_recorded:
            self._ctx.keep_response_url(click)
        try:
            message = await guarded(lambda: self._handled(handle, click), delivery)
        except UserFacingError as error:
            message = self._refused(error, handle, click, delivery)
        if message:
            self._ctx.reply_to_click(click, message)
        return BoltResponse(status=HTTPStatus.OK)

    def _refused(
        self,
        error: UserFacingError,
        handle: OnClick,
        click: Clicked,
        delivery: Delivery,
    ) -> UserText:
        """Return the reply to the person; retry an unconfirmed click."""
        if error.message != UNCONFIRMED:
            return error.message
        again = self._confirmed(handle, click, delivery)
        self._ctx.tasks.later(again, name="confirm")
        return TRYING_AGAIN

    async def _confirmed(
        self, handle: OnClick, click: Clicked, delivery: Delivery
    ) -> None:
        """Retry a click until replicas have its writes; then reply to the person."""
        message: UserText = UNCONFIRMED
        for _ in range(CONFIRM_TRIES):
            await asyncio.sleep(CONFIRM_EVERY_S)
            try:
                # The handler returns a sentence if the decision was written before, by
                # this person or another one, and None if it was lost and is written
                # only now.
                again = replace(delivery, until_s=deadline())
                said = await guarded(lambda: self._handled(handle, click), again)
            except UserFacingError as error:
                message = error.message
                if message in {UNCONFIRMED, NOT_RECORDED, NOT_CONFIRMED}:
                    continue
            else:
                message = said or CONFIRMED
            break
        self._ctx.reply_to_click(click, message)

    async def _submit(
        self, handle: OnSubmit, submitted: Submitted, delivery: Delivery
    ) -> BoltResponse:
        try:
            reply = await guarded(lambda: self._submitted(handle, submitted), delivery)
        except UserFacingError as error:
            # On top: the form keeps its text, and can be submitted again.
            view = notice(_TITLE, error.message)
            reply = {"response_action": "push", "view": view}
        return _json(reply)

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


async def _unknown_click(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    del ctx
    logger.warning("click.unknown action=%r", clicked.action.action_id[:80])
    return template("This button is not known any more. Please use the newest card.")


async def _unknown_form(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    del ctx
    logger.warning("view.unknown callback=%r", submitted.view.callback_id[:80])
    raise UserFacingError(
        template("This form is not known any more. Please open it again.")
    )


async def _unknown_event(ctx: ListenerContext, body: Json) -> None:
    del ctx, body


def _add(table: dict[str, T], name: str, handle: T) -> None:
    if name in table:
        raise ValueError(f"{str(name)!r} has two listeners; give it one.")
    table[name] = handle


def _json(reply: AckBody) -> BoltResponse:
    return BoltResponse(status=HTTPStatus.OK, body={**reply})
