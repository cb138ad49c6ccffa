"""Redact messages in Slack some time after their approval has ended.

The publisher notes each message that it posts about an approval. When the time is over,
each of them is replaced by a few words: the card, its copies in direct messages, what
was said in their threads and in other channels. This waits for everything else that is
to be sent, and is tried again for a month where Slack cannot be reached. What nobody
can change any more is left, calmly.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta

from keyturn.bot.blocks import Message
from keyturn.bot.cards.undelivered import erased, is_over, outcome_of, redacted
from keyturn.bot.delivery.card_publisher import CardPublisher, RateLimitDelay
from keyturn.bot.limits import UPDATE
from keyturn.bot.web import (
    ABOUT_THE_BLOCKS,
    NOT_ABOUT_THE_CARD,
    STILL_THERE,
    RateLimited,
    SlackError,
    SlackRefused,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.service.reviews import ReviewService
from keyturn.gateway.store.posted_messages import (
    LOOK,
    Ended,
    PostedMessages,
)

logger = logging.getLogger(__name__)

LOOK_S = 30.0
"""How often it is looked for messages whose time is over."""

RETRY = timedelta(minutes=10)
RETRY_NOT_FOUND = timedelta(days=1)
"""After which time a channel that was not found is looked for again: the bot may be
invited again, or somebody use a card where the channel has another id."""

END = timedelta(days=30)
"""How long it is tried to redact a message."""

_BATCH = 20
_RESERVE = 3
_NOT_FOUND = "channel_not_found"
_GONE = frozenset(
    {
        "is_archived",
        "is_inactive",
        "message_not_found",
        "not_in_channel",
        "thread_not_found",
        "user_not_found",
    }
)
"""Refusals after which nobody reads the message here, or the bot cannot reach it."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of an approval: how it ended; None while it has not."""

    ended: Ended | None
    is_there: bool
    rev: int = 0


class Redactor:
    """Redacts the messages of one tenant.

    Args:
        card_publisher: makes the calls.
        service: reads approvals.
        kept: how long messages stay as they are after their approval has ended.
    """

    def __init__(
        self, card_publisher: CardPublisher, service: ReviewService, kept: timedelta
    ) -> None:
        self.card_publisher, self.kept = card_publisher, kept
        self.tenant, self.read = card_publisher.tenant, service.read
        self.store = card_publisher.store.posted_messages
        self.collected = card_publisher.store.collected_cards

    async def look(self) -> None:
        """Redact what is due, some of it; the rest waits for the next look.

        Raises:
            StoreUnavailable: when the store does not answer.
            LeaseLost: when another process publishes now.
        """
        keys = self.card_publisher.keys
        for approval in await self.store.due(keys, _BATCH):
            posted = await self.store.read(keys, approval)
            try:
                await self._look_at(approval, posted)
            except (RateLimitDelay, SlackError) as error:
                await self._later(approval, posted, error)
                # The next one would fare no better.
                return

    async def _look_at(self, approval: str, posted: PostedMessages) -> None:
        keys, now_ms = self.card_publisher.keys, posted.now_ms
        found = await self._find(approval, posted)
        if found.ended is None:
            at_ms = now_ms + self._pause_ms
            await self.store.look_at(keys, approval, at_ms)
            return
        kept_ms = 0 if found.ended.is_erased else _ms(self.kept)
        due_ms = found.ended.at_ms + kept_ms
        if due_ms > now_ms:
            at_ms = min(due_ms, now_ms + _ms(LOOK))
            await self.store.look_at(keys, approval, at_ms, ended=found.ended)
            return
        # Kept first: on the next attempt the record may be gone.
        await self.store.look_at(keys, approval, now_ms, ended=found.ended)
        places = list(posted.places)
        # While it is kept, somebody may have it run again, and its card is drawn anew.
        card = await self._of_card(approval) if found.is_there else frozenset[str]()
        if found.ended.redacted_rev == found.rev:
            places = [one for one in places if one[1] not in card]
        days = max(1, self.kept.days)
        message = redacted(approval, found.ended.outcome, days=days)
        if found.ended.is_erased:
            message = erased()
        await self._redact(approval, places, message, keep=card)
        if not found.is_there:
            await self.store.forget(keys, approval)
            return
        await self.store.look_at(
            keys,
            approval,
            now_ms + self._pause_ms,
            ended=found.ended.with_(redacted_rev=found.rev),
        )

    async def _redact(
        self,
        approval: str,
        places: list[tuple[str, str]],
        message: Message,
        *,
        keep: frozenset[str],
    ) -> None:
        """Redact messages; tell how many, and forget each that is done with.

        Those whose ts to ``keep`` are remembered, to be redacted again.

        Raises:
            RateLimitDelay: Slack asks to wait.
            SlackError: a message may be redacted later.
        """
        done: list[tuple[str, str]] = []
        count, refused = 0, None
        try:
            for place in places:
                try:
                    count += await self._replace(place, message)
                except SlackRefused as error:
                    if error.error in NOT_ABOUT_THE_CARD:
                        raise
                    # Of this message alone: it keeps no other from its time.
                    refused = error
                else:
                    done += [] if place[1] in keep else [place]
        finally:
            # Told before they are forgotten: after a crash it is told twice, not never.
            if count:
                await self._note(approval, count)
            for place in done:
                await self.store.redacted(self.card_publisher.keys, approval, place)
        if refused is not None:
            raise refused
        logger.info("messages.redacted id=%s count=%d", approval, count)

    async def _note(self, approval: str, count: int) -> None:
        event = Event(
            name=EventName.MESSAGES_REDACTED,
            tenant=self.tenant,
            approval=approval,
            data={"messages": str(count)},
        )
        publisher = self.card_publisher
        await publisher.store.audit(publisher.keys).append(event)

    @property
    def _pause_ms(self) -> int:
        """Return how long nothing can be due of an approval that has not ended."""
        return _ms(max(min(self.kept, LOOK), timedelta(hours=1)))

    async def _find(self, approval: str, posted: PostedMessages) -> _Found:
        keys = self.card_publisher.keys
        members, _ = await self.collected.members(keys, approval)
        records: list[Approval] = []
        try:
            for one in members or [approval]:
                loaded = await self.read(one)
                records += [loaded.approval] if loaded else []
        except CorruptRecord:
            # Nothing of it runs. It ends when that was found out.
            ended = posted.ended or Ended(at_ms=posted.now_ms)
            return _Found(ended, is_there=False)
        if not records:
            # Where nobody saw how it ended, it has been gone for long enough.
            long_ago = Ended(at_ms=posted.now_ms - _ms(self.kept))
            return _Found(posted.ended or long_ago, is_there=False)
        if not all(map(is_over, records)):
            return _Found(None, is_there=True)
        ended = Ended(
            at_ms=max(item.changed_at_ms for one in records for item in one.items),
            outcome=outcome_of(records),
            redacted_rev=posted.ended.redacted_rev if posted.ended else 0,
        )
        return _Found(ended, is_there=True, rev=sum(one.rev for one in records))

    async def _of_card(self, approval: str) -> frozenset[str]:
        """Return the ts of the card of an approval, and of its copies.

        Nothing is redacted by it that was not noted: others may write there.
        """
        place = await self.card_publisher.place(approval)
        # A message that tells of many is redacted with the last of them.
        if place is None or place.collected or place.is_in_summary:
            return frozenset()
        return frozenset({place.ts, *(ts for _, ts in place.places.values())})

    async def _replace(self, place: tuple[str, str], message: Message) -> bool:
        """Replace one message; return whether it shows nothing of the request now.

        Raises:
            RateLimitDelay: Slack asks to wait.
            SlackError: it may be possible later.
        """
        publisher = self.card_publisher
        while wait_s := publisher.limits.take(UPDATE, keep=_RESERVE):  # noqa: ASYNC110 - it waits for time to pass
            await asyncio.sleep(wait_s)
        try:
            await publisher.update(*place, message)
        except SlackRefused as error:
            if error.error in _GONE:
                logger.info("message.gone why=%s", error.error)
                return False
            if error.error not in STILL_THERE | ABOUT_THE_BLOCKS:
                raise
            # A workspace that lets nothing be edited may let it be deleted.
            return await self._delete(place)
        return True

    async def _delete(self, place: tuple[str, str]) -> bool:
        """Delete one message; False where Slack lets nobody do that. Raises likewise.

        Not by `CardPublisher.delete`, for which a message that stays is good enough.
        """
        publisher, at = self.card_publisher, {"channel": place[0], "ts": place[1]}
        try:
            await publisher.moved.call(publisher.slack, "chat.delete", at)
        except SlackRefused as error:
            if error.error in NOT_ABOUT_THE_CARD:
                raise
            logger.warning("message.not_redacted why=%s", error.error)
            return False
        return True

    async def _later(
        self, approval: str, posted: PostedMessages, error: Exception
    ) -> None:
        keys, now_ms = self.card_publisher.keys, posted.now_ms
        logger.warning("messages.not_redacted id=%s why=%s", approval, error)
        ended = posted.ended
        if ended and now_ms > ended.at_ms + _ms(self.kept + END):
            logger.error("messages.given_up id=%s", approval)
            await self.store.forget(keys, approval)
            return
        wait = RETRY
        if isinstance(error, SlackRefused) and error.error == _NOT_FOUND:
            wait = RETRY_NOT_FOUND
        elif isinstance(error, RateLimitDelay):
            wait = timedelta(seconds=error.wait_s)
        elif isinstance(error, RateLimited):
            wait = timedelta(seconds=error.retry_after_s)
        await self.store.look_at(keys, approval, now_ms + _ms(wait))


def _ms(time: timedelta) -> int:
    return int(time.total_seconds() * 1000)
