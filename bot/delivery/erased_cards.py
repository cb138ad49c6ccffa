"""Replace the card of an approval that was erased."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from twokey.bot.cards.erased import erased
from twokey.bot.delivery.card_publisher import CardPublisher
from twokey.bot.web import SlackRefused
from twokey.gateway.approvals.events import Event, EventName

logger = logging.getLogger(__name__)


async def replace_erased(
    publisher: CardPublisher, approval: str, events: Iterable[Event]
) -> None:
    """Replace the card of an approval that is gone, and its copies.

    Only where one of these events says that it was erased.

    Raises:
        SlackError: when Slack did not answer; what it refuses stays as it is.
    """
    if not any(one.name is EventName.APPROVAL_ERASED for one in events):
        return
    place = await publisher.own_place(approval)
    # A collected card shows other calls as well, and is drawn anew with the next change
    # of one of them.
    if place is None or place.collected:
        return
    for channel, ts in [(place.channel, place.ts), *place.places.values()]:
        try:
            await publisher.update(channel, ts, erased())
        except SlackRefused as error:
            logger.warning("card.not_erased id=%s why=%s", approval, error.error)
