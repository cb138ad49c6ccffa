"""Dispatch requests to listeners; turn every exception into a private message.

A listener registers itself with `on_action`, `on_submit` or `on_event`. Bolt has one
listener for each kind of request, which looks up the bot's listener in a table, by
``action_id``, ``callback_id`` or event type.

A listener gets a typed record and may raise `UserFacingError`, and for a form
`InvalidInputs`, whose sentences appear under its inputs. Any other exception is logged
and answered with a sentence: otherwise the response would be a 500, and Slack does not
deliver an interaction twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Protocol, TypeVar

from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse

from keyturn.bot.blocks import notice
from keyturn.bot.ids import Action, View, chosen
from keyturn.bot.ingress import Delivery, deadline
from keyturn.bot.listener_context import (
    ListenerContext,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from keyturn.bot.modals.form import InvalidInputs
from keyturn.bot.payload import BadPayload, Clicked, Command, Json, Submitted
from keyturn.bot.text import label, template
from keyturn.bot.web import text_at
from keyturn.gateway import errors
from keyturn.gateway.failures import any_failure, log_failure

logger = logging.getLogger(__name__)

NOT_RECORDED = label(
    "The gateway cannot keep anything right now, so nothing was recorded. Please try "
    "again in a moment."
)
NOT_CONFIRMED = label(
    "It is not confirmed that this is recorded. Please look again in a moment, and "
    "repeat it if nothing shows it."
)
UNCONFIRMED = label(
    "This is recorded, but no replica of the store has confirmed it, so it may yet be "
    "lost. Please look again in a moment, and repeat it if nothing shows it."
)
CORRUPT = label(
    "The record of this approval is corrupt, so nothing was recorded and nothing "
    "of it will run. Please tell the gateway's operator; the agent can ask again."
)
BROKEN = label(
    "Something went wrong on our side, so it is not confirmed that this is recorded. "
    "Please look again in a moment. The bot's operator finds the cause in its log."
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
    except (UserFacingError, BadPayload, InvalidInputs):
        raise
    except any_failure() as error:  # Slack needs an answer
        said = next((one for kind, one in _FAILURES if isinstance(error, kind)), BROKEN)
        if said in {BROKEN, CORRUPT}:
            log_failure(logger, error, "listener.failed")
        else:
            logger.warning("listener.unconfirmed why=%s", type(error).__name__)
        raise UserFacingError(said) from None


_FAILURES = (
    (errors.Unanswered, NOT_CONFIRMED),
    (errors.NotConfirmed, UNCONFIRMED),
    (errors.StoreUnavailable, NOT_RECORDED),
    (TimeoutError, NOT_CONFIRMED),
    (errors.CorruptRecord, CORRUPT),
)
"""Failures with a sentence of their own; subclasses come first."""

_PASSING = frozenset({NOT_RECORDED, NOT_CONFIRMED, UNCONFIRMED})

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

_ANY = re.compile("")

AckBody = Mapping[str, object]
Context = Mapping[str, object]

OnClick = Callable[[ListenerContext, Clicked], Awaitable[UserText | None]]
"""Returns a sentence for the person, or None."""

OnSubmit = Callable[[ListenerContext, Submitted], Awaitable[AckBody]]
"""Returns how Slack changes the modal (its ``response_action``)."""

OnCommand = Callable[[ListenerContext, Command], Awaitable[AckBody]]
OnEvent = Callable[[ListenerContext, Json], Awaitable[None]]

_Answer = Callable[[dict[str, object], Delivery], Awaitable[BoltResponse]]
_OfBolt = Callable[[dict[str, object], Context], Awaitable[BoltResponse]]
_Register = Callable[[_OfBolt], object]


class Bolt(Protocol):
    """The parts of Bolt's app used here, with types (its own are partial)."""

    async def async_dispatch(self, req: AsyncBoltRequest) -> BoltResponse:
        """Answer a request."""
        ...

    def action(self, constraints: re.Pattern[str]) -> _Register:
        """Register for clicks."""
        ...

    def view_submission(self, constraints: re.Pattern[str]) -> _Register:
        """Register for submitted modals."""
        ...

    def command(self, command: str) -> _Register:
        """Register for a slash command."""
        ...

    def event(self, event: re.Pattern[str]) -> _Register:
        """Register for events."""
        ...


def _of_bolt(answer: _Answer) -> _OfBolt:
    """Return a function of the router as Bolt calls it."""

    async def called(body: dict[str, object], context: Context) -> BoltResponse:
        """Answer one payload."""
        delivery = context.get(DELIVERY)
        # A request that reached Bolt without the ingress must not decide anything.
        if not isinstance(delivery, Delivery):
            delivery = Delivery(body, {}, "", is_recorded=False)
        try:
            return await answer(body, delivery)
        except BadPayload as error:
            # Only the path is logged: a payload may contain people's text.
            # Acknowledged, because a payload of the same shape is unreadable the second
            # time, too.
            logger.warning("listener.bad_payload place=%s", error.place)
            return BoltResponse(status=HTTPStatus.OK)

    return called


_CLICKS: dict[str, OnClick] = {}
_FORMS: dict[str, OnSubmit] = {}
_EVENTS: dict[str, OnEvent] = {}


def on_action(*actions: Action) -> Callable[[OnClick], OnClick]:
    """Register a listener for clicks on the buttons with these ``action_id``."""
    return partial(_add, _CLICKS, actions)


def on_submit(*views: View) -> Callable[[OnSubmit], OnSubmit]:
    """Register a listener for submissions of the modals with these ``callback_id``."""
    return partial(_add, _FORMS, views)


def on_event(*events: str) -> Callable[[OnEvent], OnEvent]:
    """Register a listener for events of these types; Slack repeats unstored events."""
    return partial(_add, _EVENTS, events)


def _add(table: dict[str, T], names: Sequence[str], listener: T) -> T:
    for name in names:
        if name in table:
            raise ValueError(f"{str(name)!r} has two listeners; give it one.")
        table[name] = listener
    return listener


@on_action(Action.MORE)
async def _chosen_in_menu(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    """Handle an action chosen in a menu as a click on its button."""
    name, value = chosen(clicked.value)
    # A value that names the menu would recurse without end.
    if name == Action.MORE:
        return await _unknown_click(ctx, clicked)
    changed = {"action_id": name, "value": value}
    return await _handle(ctx, clicked.model_copy(update=changed))


@dataclass(frozen=True, slots=True)
class Router:
    """Answers Slack's requests by the registered listeners.

    Attributes:
        ctx: the dependencies of each listener.
        on_command: answers the slash command; only its author sees the reply.
    """

    ctx: ListenerContext
    on_command: OnCommand

    def listen(self, bolt: Bolt) -> None:
        """Register with Bolt for all clicks, modals, commands and events."""
        for register, answer in (
            (bolt.action(_ANY), self._click),
            (bolt.view_submission(_ANY), self._submit),
            (bolt.command(self.ctx.config.command), self._command),
            (bolt.event(_ANY), self._event),
        ):
            register(_of_bolt(answer))

    async def _command(self, body: Json, delivery: Delivery) -> BoltResponse:
        asked = Command.read(body, delivery.digest)
        try:
            reply = await guarded(partial(self.on_command, self.ctx, asked), delivery)
        except UserFacingError as error:
            reply = {"text": to_mrkdwn(error.message)}
        return _json({"response_type": "ephemeral", **reply})

    async def _event(self, body: Json, delivery: Delivery) -> BoltResponse:
        handle = _EVENTS.get(text_at(body, "event", "type"))
        try:
            if handle is not None:
                await guarded(partial(handle, self.ctx, body), delivery)
        except UserFacingError as error:
            # Slack repeats an event that is answered with an error, up to three times.
            # A repetition helps only after these refusals.
            if error.message in _PASSING:
                return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)
        return BoltResponse(status=HTTPStatus.OK)

    async def _click(self, body: Json, delivery: Delivery) -> BoltResponse:
        click = Clicked.read(body, delivery.digest)
        try:
            message = await guarded(partial(_handle, self.ctx, click), delivery)
        except UserFacingError as error:
            message = error.message
            if message == UNCONFIRMED:
                again = self._confirmed(click, delivery)
                self.ctx.tasks.later(again, name="confirm")
                message = TRYING_AGAIN
        if message:
            self.ctx.reply_to_click(click, message)
        return BoltResponse(status=HTTPStatus.OK)

    async def _confirmed(self, click: Clicked, delivery: Delivery) -> None:
        """Retry a click until replicas have its writes; then reply to the person."""
        message: UserText = UNCONFIRMED
        for _ in range(CONFIRM_TRIES):
            await asyncio.sleep(CONFIRM_EVERY_S)
            try:
                # The handler returns a sentence if the decision was written before, by
                # this person or another one, and None if it was lost and is written
                # only now.
                again = replace(delivery, until_s=deadline())
                said = await guarded(partial(_handle, self.ctx, click), again)
            except UserFacingError as error:
                message = error.message
                if message in _PASSING:
                    continue
            else:
                message = said or CONFIRMED
            break
        self.ctx.reply_to_click(click, message)

    async def _submit(self, body: Json, delivery: Delivery) -> BoltResponse:
        submitted = Submitted.read(body, delivery.digest)
        try:
            handle = _FORMS.get(submitted.callback_id, _unknown_form)
            reply = await guarded(partial(handle, self.ctx, submitted), delivery)
        except UserFacingError as error:
            # On top: the form keeps its text, and can be submitted again.
            view = notice("Not done", error.message)
            reply = {"response_action": "push", "view": view}
        except InvalidInputs as error:
            reply = {"response_action": "errors", "errors": error.errors}
        return _json(reply)


async def _handle(ctx: ListenerContext, click: Clicked) -> UserText | None:
    return await _CLICKS.get(click.action_id, _unknown_click)(ctx, click)


async def _unknown_click(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    del ctx
    logger.warning("click.unknown action=%r", clicked.action_id[:80])
    return template("This button is not known any more. Please use the newest card.")


async def _unknown_form(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    del ctx
    logger.warning("view.unknown callback=%r", submitted.callback_id[:80])
    raise UserFacingError("This form is not known any more. Please open it again.")


def _json(reply: AckBody) -> BoltResponse:
    return BoltResponse(status=HTTPStatus.OK, body={**reply})
