"""Replace a card by the response URL of a click on it, outside the limit of updates.

Slack takes some fifty updates a minute from an app in a workspace, and counts none of
what comes by a response URL. Only the publisher uses the URLs that clicks left in the
store, so each card is still changed by one process, one change after the other.

Whether Slack refuses to replace a message that was deleted is not documented. So where
people still have to act on a card, its permalink is asked for afterwards: a card that
is gone is posted anew.
"""

from __future__ import annotations

import asyncio
import logging

from keyturn.bot.blocks import AS_WRITTEN
from keyturn.bot.cards.undelivered import needs_people
from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.delivery.conversation_links import PERMALINK
from keyturn.bot.delivery.queue_entry import Call, QueueEntry
from keyturn.bot.limits import UPDATE
from keyturn.bot.web import SlackError, SlackRefused
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.store.cards import CardPlace
from keyturn.gateway.store.fences import current

logger = logging.getLogger(__name__)

_WITHIN_S = 2.0
_GONE = "message_not_found"


async def replace_card(
    publisher: CardPublisher,
    entry: QueueEntry,
    record: Approval,
    place: CardPlace | None,
    now_ms: int,
    needed: Call | None,
) -> CardPlace | None:
    """Show the newest state; None when it is left to the call that is needed.

    After a URL that Slack did not take, or did not answer, that call may show the
    same once more.
    """
    is_update = needed is not None and needed.method == UPDATE
    if place is None or not is_update or entry.copy_due is not None:
        return None
    at, urls = (place.channel, place.ts), publisher.store.response_urls
    url = await urls.take(publisher.keys, *at) if entry.may_have_url else ""
    entry.may_have_url = publisher.slack.is_own(url)
    if not entry.may_have_url:
        return None
    frame = publisher.frame(record, now_ms, sent=place.sent)
    message = await publisher.render(frame, is_update=True, is_plain=entry.is_plain)
    shows = {"blocks": message.blocks, "text": message.text}
    body = {"replace_original": True, "metadata": message.metadata, **shows}
    if (lease := current()) is not None:
        lease.check()
    try:
        await publisher.slack.respond(url, body | AS_WRITTEN)
    except SlackError as error:
        logger.warning("card.not_replaced id=%s why=%s", record.id, error)
        await urls.forget(publisher.keys, *at)
        entry.may_have_url = False
        return None
    # Not for a card on which nothing is left to do: it is not posted anew, either.
    if needs_people(record) and await _is_gone(publisher, place):
        logger.warning("card.gone id=%s", record.id)
        await urls.forget(publisher.keys, *at)
        entry.may_have_url = False
        return None
    if needs_people(record):
        # Once a click: a deleted card with replies leaves a message that may have a
        # permalink. It takes no click, so its next change is an update, which Slack
        # refuses, and the card is posted anew.
        await urls.forget(publisher.keys, *at)
        entry.may_have_url = False
    shown = await publisher.record_shown(record, place, message, sent=place.sent)
    logger.info("card.replaced id=%s rev=%d", record.id, record.rev)
    return shown


async def _is_gone(publisher: CardPublisher, place: CardPlace) -> bool:
    """Return whether Slack says that there is no such message."""
    slack, at = publisher.slack, (place.channel, place.ts)
    try:
        async with asyncio.timeout(_WITHIN_S):
            await slack.ask(PERMALINK, channel=at[0], message_ts=at[1])
    except SlackRefused as error:
        return error.error == _GONE
    except (SlackError, TimeoutError):
        pass  # it was replaced, as far as anybody knows
    return False
