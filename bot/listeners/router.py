"""Register listeners; turn every exception into a private message.

Clicks and submitted modals are found in a table, by ``action_id`` and ``callback_id``.
Events, commands and what the table does not know are registered with Bolt.

A listener gets a typed record and may raise `UserFacingError`. Any other exception is
logged and answered with a sentence: an exception that left a listener would be a 500,
and Slack does not deliver an interaction twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Protocol, TypeVar

from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse

from twokey.bot import payload
from twokey.bot.blocks import notice
from twokey.bot.ids import Action, View, chosen
from twokey.bot.ingress import ACKNOWLEDGED, Answer, Delivery, Progress
from twokey.bot.interactions import Clicked, Submitted
from twokey.bot.listener_context import (
    ListenerContext,
    NoRecord,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from twokey.bot.listeners.guarded import (
    BROKEN,
    NOT_CONFIRMED,
    NOT_RECORDED,
    UNCONFIRMED,
    guarded,
)
from twokey.bot.payload import BadPayload, BlockAction, Command, Json
from twokey.bot.text_types import label

logger = logging.getLogger(__name__)

DELIVERY = "twokey_delivery"
"""Name under which Bolt's context holds what the ingress knows of a request."""

CONFIRM_EVERY_S = 1.0
CONFIRM_TRIES = 60
"""How often, and how many times, a click is repeated that no replica has confirmed."""

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
"""What a command is answered with in place of sentences that name a card."""
_TITLE = label("Not done")
_ANY = re.compile("")

T = TypeVar("T")
AckBody = Mapping[str, object]
Context = Mapping[str, object]


OnClick = Callable[[ListenerContext, Clicked], Awaitable[UserText | None]]
"""Returns a sentence for the person, or None when there is nothing to say."""


@dataclass(frozen=True, slots=True)
class Said:
    """A click was handled; there may be a sentence for the person."""

    text: UserText | None


AtOnce = Callable[[ListenerContext, Clicked], Awaitable[Said | None]]
"""Handles a click in one step with remembering its request; None: nothing was done."""

OnSubmit = Callable[[ListenerContext, Submitted], Awaitable[AckBody]]
"""Returns how Slack changes the modal (its ``response_action``)."""

OnCommand = Callable[[ListenerContext, Command], Awaitable[AckBody]]
OnEvent = Callable[[ListenerContext, Json], Awaitable[None]]

_Listener = Callable[[Json, Delivery], Awaitable[Answer]]
_OfBolt = Callable[[dict[str, object], Context], Awaitable[BoltResponse]]
_Register = Callable[[_OfBolt], object]


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


def _of_bolt(listener: _Listener) -> _OfBolt:
    """Return a listener as Bolt calls it."""

    async def answer(body: dict[str, object], context: Context) -> BoltResponse:
        """Answer one payload."""
        delivery = context.get(DELIVERY)
        # A request that reached Bolt by any way but the ingress decides nothing.
        if not isinstance(delivery, Delivery):
            delivery = Delivery(body, {}, "", is_recorded=False)
        try:
            found = await listener(body, delivery)
        except BadPayload as error:
            found = _unread(error)
        return BoltResponse(status=found.status, body=found.body)

    return answer


def _unread(error: BadPayload) -> Answer:
    """Log and acknowledge a payload that does not have the shape of its kind."""
    # The place only: a payload may hold what people typed. Acknowledged, since a
    # payload of the same shape cannot be read the second time either.
    logger.warning("listener.bad_payload place=%s", error.place)
    return Answer()


class Router:
    """Where listeners are registered, each for one kind of request."""

    def __init__(self, app: Bolt, ctx: ListenerContext) -> None:
        self._bolt = app
        self._ctx = ctx
        self._clicks: dict[str, OnClick] = {}
        self._at_once: dict[str, AtOnce] = {}
        self._submits: dict[str, OnSubmit] = {}
        self._no_record: OnClick | None = None
        self._no_record_of_form: OnSubmit | None = None

    async def interaction(self, body: Json, delivery: Delivery) -> Answer | None:
        """Answer a click or a submitted modal; None when it is not in the tables."""
        try:
            match body.get("type"):
                case "block_actions":
                    click = Clicked(payload.block_action(body), delivery.digest)
                    on_click = self._clicks.get(click.action.action_id)
                    return on_click and await self._click(on_click, click, delivery)
                case "view_submission":
                    form = Submitted(payload.view_submission(body), delivery.digest)
                    on_submit = self._submits.get(form.view.callback_id)
                    return on_submit and await self._submit(on_submit, form, delivery)
                case _:
                    return None
        except BadPayload as error:
            return _unread(error)

    async def at_once(self, action: BlockAction, delivery: Delivery) -> Answer | None:
        """Answer a click whose request nobody has remembered; None: nothing was done.

        Whatever is done here remembers the request in the same step.
        """
        handle = self._at_once.get(action.action_id)
        if handle is None:
            return None
        click = Clicked(action, delivery.digest)
        try:
            said = await guarded(lambda: handle(self._ctx, click), delivery)
        except UserFacingError as error:
            # Whether the request is remembered is not known, either. Not awaited: a
            # store that answers nothing would hold up the answer.
            kept = self._ctx.remember(delivery.digest)
            self._ctx.tasks.later(kept, name="remember")
            listener = self._clicks[action.action_id]
            said = Said(self._refused(error, listener, click, delivery))
        if said is None:
            return None
        if said.text:
            self._ctx.reply_to_click(click, said.text)
        return ACKNOWLEDGED

    def on_action(
        self, action: Action, handle: OnClick, *, at_once: AtOnce | None = None
    ) -> None:
        """Call this for clicks on the buttons with this ``action_id``.

        ``at_once`` is called before it, with a click that is not remembered yet.
        """
        _add(self._clicks, action, handle)
        if at_once is not None:
            _add(self._at_once, action, at_once)

    def on_submit(self, view: View, handle: OnSubmit) -> None:
        """Call this when a modal with this ``callback_id`` is submitted."""
        _add(self._submits, view, handle)

    def on_unknown(self, click: OnClick, submit: OnSubmit) -> None:
        """Call these for what no other listener handles, those of Bolt included."""

        async def clicked(body: Json, delivery: Delivery) -> Answer:
            found = Clicked(payload.block_action(body), delivery.digest)
            return await self._click(click, found, delivery)

        async def submitted(body: Json, delivery: Delivery) -> Answer:
            found = Submitted(payload.view_submission(body), delivery.digest)
            return await self._submit(submit, found, delivery)

        self._bolt.action(_ANY)(_of_bolt(clicked))
        self._bolt.view_submission(_ANY)(_of_bolt(submitted))

    def on_no_record(self, click: OnClick, submit: OnSubmit) -> None:
        """Call these where no approval is known; they raise `NoRecord` as well."""
        self._no_record, self._no_record_of_form = click, submit

    def on_menu(self, menu: Action, unknown: OnClick) -> None:
        """Handle an action chosen in this menu as a click on its own button."""

        async def handle(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
            name, value = chosen(clicked.action.value)
            action = replace(clicked.action, action_id=name, value=value)
            # Not itself: a value that names the menu would name it again and again.
            found = unknown if name == menu else self._clicks.get(name, unknown)
            return await found(ctx, replace(clicked, action=action))

        self.on_action(menu, handle)

    def on_command(self, handle: OnCommand) -> None:
        """Call this for the slash command; its answer is shown to the person alone."""

        async def listener(body: Json, delivery: Delivery) -> Answer:
            asked = replace(payload.command(body), digest=delivery.digest)
            try:
                reply = await guarded(lambda: handle(self._ctx, asked), delivery)
            except UserFacingError as error:
                said = _OF_COMMANDS.get(error.message, error.message)
                reply = {"text": to_mrkdwn(said)}
            return _answer({"response_type": "ephemeral", **reply})

        self._bolt.command(self._ctx.config.command)(_of_bolt(listener))

    def on_event(self, event: str | re.Pattern[str], handle: OnEvent) -> None:
        """Call this for events of this type; Slack repeats what was not kept."""

        async def listener(body: Json, delivery: Delivery) -> Answer:
            try:
                await guarded(lambda: handle(self._ctx, body), delivery)
            except UserFacingError as error:
                # Slack repeats an event that is answered with an error, up to three
                # times. Only these may go better then; any other refusal would come
                # again.
                if error.message in {NOT_RECORDED, NOT_CONFIRMED, UNCONFIRMED}:
                    return Answer(HTTPStatus.SERVICE_UNAVAILABLE)
            return Answer()

        self._bolt.event(event)(_of_bolt(listener))

    async def _click(
        self, handle: OnClick, click: Clicked, delivery: Delivery
    ) -> Answer:
        if delivery.is_recorded:
            self._ctx.keep_response_url(click)
        try:
            message = await guarded(lambda: self._handled(handle, click), delivery)
        except UserFacingError as error:
            message = self._refused(error, handle, click, delivery)
        if message:
            self._ctx.reply_to_click(click, message)
        return ACKNOWLEDGED

    def _refused(
        self,
        error: UserFacingError,
        handle: OnClick,
        click: Clicked,
        delivery: Delivery,
    ) -> UserText:
        """Return what the person is told; repeat what no replica has confirmed."""
        if error.message != UNCONFIRMED:
            return error.message
        again = self._confirmed(handle, click, delivery)
        self._ctx.tasks.later(again, name="confirm")
        return TRYING_AGAIN

    async def _confirmed(
        self, handle: OnClick, click: Clicked, delivery: Delivery
    ) -> None:
        """Repeat a click until replicas have what it wrote; tell the person."""
        message: UserText = UNCONFIRMED
        for _ in range(CONFIRM_TRIES):
            await asyncio.sleep(CONFIRM_EVERY_S)
            try:
                # A sentence comes back where it was written before, by this person or
                # another one; nothing where it was lost and is written only now.
                again = replace(delivery, progress=Progress())
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
    ) -> Answer:
        try:
            reply = await guarded(lambda: self._submitted(handle, submitted), delivery)
        except UserFacingError as error:
            # On top: what was written stays, and can be sent again.
            view = notice(_TITLE, error.message)
            reply = {"response_action": "push", "view": view}
        return _answer(reply)

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


def _add(table: dict[str, T], name: str, handle: T) -> None:
    if name in table:
        raise ValueError(f"{str(name)!r} has two listeners; give it one.")
    table[name] = handle


def _answer(reply: AckBody) -> Answer:
    return Answer(body=json.dumps(reply), content_type="application/json")
