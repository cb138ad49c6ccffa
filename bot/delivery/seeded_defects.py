"""Post the card of a seeded defect; reveal it once it is answered or has expired.

The publishing bot checks once a minute. Each step is stored before the next, so after a
restart it continues from there; a card that was posted twice counts one answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from keyturn.bot.blocks import AS_WRITTEN, ensure_valid_message
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.call_rows import needs_full_view
from keyturn.bot.cards.special_cards import ended_card
from keyturn.bot.delivery.card_publisher import RESERVED, CardPublisher, RateLimitDelay
from keyturn.bot.limits import POST
from keyturn.bot.web import Slack, SlackError, SlackRefused
from keyturn.gateway.approvals.quality_checks import Seeded, SeededCard
from keyturn.gateway.service.decide.reviews import ReviewService

logger = logging.getLogger(__name__)


class SeededDefects:
    """The card of one tenant's seeded defect.

    Args:
        service: stores the defect.
        publisher: posts the card, with buttons like those of other cards.
        changed: called when people's queues have changed.
    """

    def __init__(
        self,
        service: ReviewService,
        publisher: CardPublisher,
        *,
        changed: Callable[[], None],
    ) -> None:
        self._seeded, self._store = service.seeded_defects, service.store
        self._publisher, self._slack = publisher, publisher.slack
        self._changed = changed

    async def look(self) -> None:
        """Make the next step if it is due; only the holder of the lease may.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        now_ms = await self._store.conn.now_ms(self._publisher.keys.outbox)
        await self._seeded.show_if_due(await self._seeded.read(), now_ms)
        seeded = await self._seeded.read()
        shown = seeded.card
        if shown is None:
            return
        if not seeded.answer and now_ms >= shown.shown.expires_at_ms:
            await self._seeded.expire(shown)
            seeded = await self._seeded.read()
        try:
            await self._publish(seeded, shown, now_ms)
        except SlackRefused as error:
            # For example a deleted channel: no later attempt could succeed either.
            logger.warning("seeded.refused why=%s", error)
            await self._seeded.end()
            self._changed()
        except (RateLimitDelay, SlackError) as error:
            logger.warning("seeded.not_sent why=%s", error)

    async def _publish(self, seeded: Seeded, shown: SeededCard, now_ms: int) -> None:
        if seeded.answer:
            await show_ended(self._slack, seeded, shown)
            await self._seeded.end()
            self._changed()
        elif not seeded.ts:
            await self._post(shown, now_ms)

    async def _post(self, shown: SeededCard, now_ms: int) -> None:
        approval = shown.shown
        # A long call is approved on its last page, and this card has no pages.
        if needs_full_view(approval, 0):
            logger.warning("seeded.too_long tool=%r", approval.items[0].tool)
            await self._seeded.end()
            return
        message = card(self._publisher.frame(approval, now_ms))
        self._publisher.take(POST, approval.channel, RESERVED)
        at = await self._publisher.post(approval.channel, message)
        await self._seeded.posted(shown, *at)
        self._changed()


async def show_ended(slack: Slack, seeded: Seeded, shown: SeededCard) -> None:
    """Reveal the defect on its card, if the card is known; raises `SlackError`."""
    if not seeded.ts:
        return
    message = ended_card(shown, seeded.answer)
    ensure_valid_message(message.blocks, message.text)
    shows = AS_WRITTEN | {"blocks": list(message.blocks), "text": message.text}
    await slack.call("chat.update", channel=seeded.channel, ts=seeded.ts, **shows)
