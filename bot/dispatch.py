"""Pass what Slack sent, by HTTP or through a socket, to whatever answers it.

Clicks and submitted modals go to their listeners directly, by ``action_id`` and
``callback_id``. All else goes through Bolt, which asks one listener after another
whether it is meant; that costs more than what a click does.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import cast

from slack_bolt.request.async_request import AsyncBoltRequest

from twokey.bot.click_payload import click_on_message
from twokey.bot.clicks_first import ClicksFirst
from twokey.bot.form import BadForm, document_of, interaction_in
from twokey.bot.ingress import Answer, Delivery
from twokey.bot.listeners.router import DELIVERY, Bolt, Router
from twokey.bot.payload import BadPayload, BlockAction, block_action
from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)


class Dispatch:
    """Hand over deliveries; whatever happens there, an answer comes back."""

    def __init__(self, router: Router, app: Bolt, first: ClicksFirst) -> None:
        self._router = router
        self._bolt = app
        self._first = first

    async def __call__(self, delivery: Delivery) -> Answer:
        """Hand over one delivery."""
        with self._first.answering():
            return await self._answered(delivery)

    async def at_once(self, delivery: Delivery) -> Answer | None:
        """Answer a click in the step that remembers it; None: nothing was done."""
        with self._first.answering():
            try:
                click = _click(delivery)
            except (BadForm, BadPayload):
                return None  # reported when it is looked at as any other
            if click is None:
                return None
            return await self._router.at_once(click, delivery)

    async def _answered(self, delivery: Delivery) -> Answer:
        try:
            answer = await self._interaction(delivery)
            return answer or await self._by_bolt(delivery)
        except BadForm as error:
            logger.warning("bot.unreadable why=%s request=%s", error, delivery.digest)
        except Exception as error:  # noqa: BLE001 - Slack needs an answer
            # Listeners let nothing out; this would be Bolt's own.
            log_failure(logger, error, "bot.dispatch_failed")
        return Answer(HTTPStatus.BAD_REQUEST)

    async def _interaction(self, delivery: Delivery) -> Answer | None:
        payload = _payload(delivery)
        if payload is None:
            return None
        return await self._router.interaction(payload, delivery)

    async def _by_bolt(self, delivery: Delivery) -> Answer:
        is_http = isinstance(delivery.body, str)
        request = AsyncBoltRequest(
            body=delivery.body,
            headers={**delivery.headers},
            context={DELIVERY: delivery},
            mode="http" if is_http else "socket_mode",
        )
        response = await self._bolt.async_dispatch(request)
        if response.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            # Bolt could not read it. To Slack that is a refusal, not a fault of ours.
            return Answer(HTTPStatus.BAD_REQUEST)
        kind = "application/json" if response.body.startswith("{") else "text/plain"
        return Answer(response.status, response.body, kind)


def _click(delivery: Delivery) -> BlockAction | None:
    """Return what a click is; None: it is something else.

    Raises:
        BadForm: it cannot be read.
        BadPayload: it has not the shape of a click.
    """
    document = _document(delivery)
    if document is not None and (click := click_on_message(document)) is not None:
        return click
    payload = _payload(delivery)
    if payload is None or payload.get("type") != "block_actions":
        return None
    return block_action(payload)


def _payload(delivery: Delivery) -> dict[str, object] | None:
    """Return the JSON of an interaction, read once; None: it is something else.

    Raises:
        BadForm: it cannot be read.
    """
    body, progress = delivery.body, delivery.progress
    if progress.payload is None:
        document = _document(delivery)
        if document is not None:
            progress.payload = interaction_in(document)
        elif not isinstance(body, str):
            progress.payload = body
    found = progress.payload
    return cast("dict[str, object]", found) if isinstance(found, dict) else None


def _document(delivery: Delivery) -> bytes | None:
    """Return the text of an interaction's JSON, decoded once; None: there is none.

    Raises:
        BadForm: it cannot be read.
    """
    body, progress = delivery.body, delivery.progress
    if progress.document is None and isinstance(body, str):
        progress.document = document_of(body)
    return progress.document
