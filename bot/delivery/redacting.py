"""Redact messages in Slack some time after their approval has ended.

The publisher records each message that it posts about an approval. When the retention
is over, each of them is replaced by a few words: the card, its copies in direct
messages, and the replies in their threads and in other channels. Other pending messages
go first, and attempts continue for a month while Slack is unreachable. Messages that
cannot be changed any more are left as they are.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta

from keyturn.bot import web
from keyturn.bot.blocks import Message
from keyturn.bot.cards.reminders import erased, is_over, outcome_of, redacted
from keyturn.bot.delivery.card_publisher import CardPublisher, RateLimitDelay
from keyturn.bot.limits import UPDATE
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.reviewers.bot_records import LOOK, Ended, PostedMessages

logger = logging.getLogger(__name__)

LOOK_S = 30.0
"""Seconds between two searches for messages whose retention is over."""

RETRY = timedelta(hours=1)
"""Time until the messages of an approval are tried again."""

END = timedelta(days=30)
"""Time for which redaction is attempted."""

_BATCH = 20
_RESERVE = 3
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
"""Refusals that mean: the message has no readers, or the bot cannot reach it."""


@dataclass(frozen=True, slots=True)
class _Found:
    """State of an approval: how it ended, or None."""

    ended: Ended | None
    is_there: bool
    rev: int = 0


class Redactor:
    """Redacts the messages of one tenant.

    Args:
        card_publisher: makes the calls.
        service: reads approvals.
        kept: how long messages stay unchanged after the end of their approval.
    """

    def __init__(
        self, card_publisher: CardPublisher, service: ReviewService, kept: timedelta
    ) -> None:
        self.card_publisher, self.kept = card_publisher, kept
        self.tenant, self.read = card_publisher.tenant, service.read
        self.store = card_publisher.store.posted_messages
        self.collected = card_publisher.store.collected_cards

    async def look(self) -> None:
        """Redact a part of the due messages; the rest waits for the next call.

        Raises:
            StoreUnavailable: the store does not answer.
            LeaseLost: another process publishes now.
        """
        keys = self.card_publisher.keys
        for approval in await self.store.due(keys, _BATCH):
            posted = await self.store.read(keys, approval)
            try:
                await self._look_at(approval, posted)
            except (RateLimitDelay, web.SlackError) as error:
                await self._later(approval, posted, error)

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
        # Stored first: at the next attempt the record may be gone.
        await self.store.look_at(keys, approval, now_ms, ended=found.ended)
        places = list(posted.places)
        # While the record exists, the call may run again, and its card is redrawn.
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
        """Redact messages; report their number, and forget each one that is done.

        Messages with a ts in ``keep`` are remembered, to be redacted again.

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
                except web.SlackRefused as error:
                    if error.error in web.NOT_ABOUT_THE_CARD:
                        raise
                    # Only for this message: the others are redacted in time.
                    refused = error
                else:
                    done += [] if place[1] in keep else [place]
        finally:
            # Reported before they are forgotten: after a crash it is reported twice,
            # not never.
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
        """Return the time for which an open approval can have no due messages."""
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
            # None of its calls run. Its end is the time of this discovery.
            ended = posted.ended or Ended(at_ms=posted.now_ms)
            return _Found(ended, is_there=False)
        if not records:
            # If its end was not observed, it has been gone for long enough.
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

        Only recorded messages are redacted: an intruder may have written these.
        """
        place = await self.card_publisher.place(approval)
        # A message about several approvals is redacted with the last of them.
        if place is None or place.collected or place.is_in_summary:
            return frozenset()
        return frozenset({place.ts, *(ts for _, ts in place.places.values())})

    async def _replace(self, place: tuple[str, str], message: Message) -> bool:
        """Replace one message; return whether it shows nothing of the request any more.

        Raises:
            RateLimitDelay: Slack asks to wait.
            SlackError: it may be possible later.
        """
        publisher = self.card_publisher
        while wait_s := publisher.limits.take(UPDATE, keep=_RESERVE):  # noqa: ASYNC110 - it waits for time to pass
            await asyncio.sleep(wait_s)
        try:
            await publisher.update(*place, message)
        except web.SlackRefused as error:
            if error.error in _GONE:
                logger.info("message.gone why=%s", error.error)
                return False
            if error.error not in web.STILL_THERE | web.ABOUT_THE_BLOCKS:
                raise
            # A workspace that forbids edits may permit deletion.
            return await self._delete(place)
        return True

    async def _delete(self, place: tuple[str, str]) -> bool:
        """Delete one message; False if Slack does not permit it. Raises likewise.

        `CardPublisher.delete` accepts a message that stays; this does not.
        """
        publisher, at = self.card_publisher, {"channel": place[0], "ts": place[1]}
        try:
            await publisher.moved.call(publisher.slack, "chat.delete", at)
        except web.SlackRefused as error:
            if error.error in web.NOT_ABOUT_THE_CARD:
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
        await self.store.look_at(keys, approval, now_ms + _ms(RETRY))


def _ms(time: timedelta) -> int:
    return int(time.total_seconds() * 1000)
