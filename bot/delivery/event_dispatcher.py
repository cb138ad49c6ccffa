"""Post outbox events: first the card, then its thread replies, else a message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from twokey.bot.cards.freeze_messages import FREEZE_EVENTS
from twokey.bot.cards.notification import many_ran
from twokey.bot.cards.reminders import escalation
from twokey.bot.delivery import run_messages
from twokey.bot.delivery.card_publisher import CardPublisher, RateLimitDelay
from twokey.bot.delivery.card_updater import (
    BROKEN_S,
    NOT_ABOUT_THE_CARD,
    CardUpdater,
)
from twokey.bot.delivery.lines import message_without_card
from twokey.bot.delivery.outbox_queue import Call, Topic
from twokey.bot.limits import POST
from twokey.bot.web import SlackError, SlackRefused
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)

GIVE_UP_AFTER = 8
"""Failures in a row before the next fallback: drop a reply, or show a plain card,
then quarantine the card. Failures of Slack and of the store count, too."""

_LONGEST_WAIT_S = 30.0
_QUARANTINE_S = 600.0


@dataclass(frozen=True, slots=True)
class EventDispatcher:
    """How topics become messages.

    Attributes:
        updater: how cards do.
        channel: returns where to say what belongs to no card and no thread.
    """

    updater: CardUpdater
    channel: Callable[[], str]

    @property
    def card_publisher(self) -> CardPublisher:
        """Return where messages go."""
        return self.updater.card_publisher

    def next_call(self, topic: Topic) -> Call | None:
        """Return the call that a topic seems to need next; None for none."""
        if topic.summary_channel:
            return Call(POST, topic.summary_channel)
        if topic.is_card_next(self.updater.clock()):
            return self.updater.next_call(topic)
        if topic.notes:
            return Call(POST, topic.notes[0].channel)
        if topic.events and run_messages.is_about_outage(topic.events[0]):
            return run_messages.call_for(topic, topic.events[0])
        channel = self._channel(topic, topic.events[0]) if topic.events else ""
        return Call(POST, channel) if channel else None

    async def step(self, topic: Topic, reserved: Call | None) -> float:
        """Make the next call for a topic; return how long it then has to wait.

        Failures of Slack, of the store and of our own code are not raised: what fails
        is tried again after a while, and what can never succeed is reported and
        quarantined.

        Args:
            topic: what it is about.
            reserved: what was taken from the rate limit for it.
        """
        # A reserved call is not returned to the rate limit after a failure or a 429:
        # it may have reached Slack, which then counts it.
        try:
            return await self._attempt(topic, reserved)
        except RateLimitDelay as error:
            return error.wait_s
        except (SlackError, StoreUnavailable) as error:
            logger.warning("publisher.retrying topic=%s why=%s", topic.key, error)
            topic.failures += 1
            return min(_LONGEST_WAIT_S, 0.5 * 2.0 ** min(topic.failures, 10))

    async def _attempt(self, topic: Topic, reserved: Call | None) -> float:
        try:
            try:
                is_made = await self._next(topic, reserved)
            except SlackRefused as error:
                return await self._refused(topic, error)
        # These are for `step`, which knows how long to wait. The handler below is for
        # mistakes of ours only; SlackRefused is answered above, and what `_refused`
        # itself raises passes through here.
        except (RateLimitDelay, SlackError, StoreUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - one topic must not stop the others
            log_failure(logger, error, "publisher.failed topic=%s", topic.key)
            return await self._failed(topic)
        # Only after success: after a failure Slack may have counted the call.
        if reserved is not None and not is_made:
            self.card_publisher.limits.give_back(*reserved)
        topic.failures = 0
        return 0.0

    async def _next(self, topic: Topic, reserved: Call | None) -> bool:
        """Do what comes next; return whether the reserved call was made."""
        if topic.summary_channel:
            return await self._post_summary(topic)
        if topic.is_card_next(self.updater.clock()):
            return await self.updater.show(topic, reserved)
        if topic.notes:
            return await self._post_reply(topic)
        # There is an event: the queue drops a topic with nothing left to post.
        if run_messages.is_about_outage(topic.events[0]):
            return await self._show_outage(topic, reserved)
        return await self._post_message(topic)

    async def _post_reply(self, topic: Topic) -> bool:
        line, keys = topic.notes[0], self.updater.keys
        cards, message = self.card_publisher.cards, line.message
        if line.escalated is not None:
            # Made now and not when it was queued: it names the channels that could not
            # be told, which is known only after the lines before it were sent.
            message = escalation(line.escalated, topic.called)
        await self.card_publisher.say(line.channel, message, thread_ts=line.thread_ts)
        # From here on Slack has the message. What is noted below may be lost in a
        # crash: then the line is said twice, and never not at all.
        if line.called:
            topic.called[line.called] = ""
        if line.asks:
            await cards.asked(keys, topic.approval, line.asks)
            topic.asked |= line.asks
        if line.report:
            await cards.told(keys, topic.approval, line.report)
        await self._drop_line(topic)
        return True

    async def _post_message(self, topic: Topic) -> bool:
        event = topic.events[0]
        channel = self._channel(topic, event)
        # "I am working on it" is left out when the answer is already behind it in the
        # queue.
        is_last = len(topic.events) == 1
        message = message_without_card(
            event, command=self.card_publisher.command, is_last=is_last
        )
        is_said = message is not None and bool(channel)
        if message is not None and channel:
            thread_ts = event.data.get("thread_ts") or None
            await self.card_publisher.say(channel, message, thread_ts=thread_ts)
        await self.updater.acknowledge(topic, [event])
        return is_said

    async def _show_outage(self, topic: Topic, reserved: Call | None) -> bool:
        event = topic.events[0]
        is_made, is_done = await run_messages.show(self.card_publisher, topic, reserved)
        if is_done:
            await self.updater.acknowledge(topic, [event])
        return is_made

    async def _post_summary(self, topic: Topic) -> bool:
        """Post one message about many notifications; it is never updated."""
        events = list(topic.events)
        ran = [one for one in events if one.name is EventName.ITEM_AUTHORIZED]
        if ran:
            place = await self.card_publisher.say(
                topic.summary_channel,
                many_ran(events, command=self.card_publisher.command),
            )
            # In order and each once: `folded` makes the message findable by the last
            # approval, which lives longest.
            told = [*dict.fromkeys(event.approval for event in ran)]
            await self.card_publisher.cards.folded(self.updater.keys, told, *place)
        await self.updater.acknowledge(topic, events)
        return bool(ran)

    def _channel(self, topic: Topic, event: Event) -> str:
        if event.name in FREEZE_EVENTS:
            return topic.channel or self.channel()
        return event.data.get("channel") or event.channel

    async def _refused(self, topic: Topic, error: SlackRefused) -> float:
        """Drop what Slack will never take; post a freeze in the fallback channel.

        Not about a card: `CardUpdater.show` handles what Slack says of one.
        """
        topic.failures += 1
        if error.error in NOT_ABOUT_THE_CARD:
            logger.error("publisher.bot_refused error=%s", error.error)
            return BROKEN_S
        fallback = self.updater.fallback_channel
        # A freeze is told to everybody; a channel that refuses must not hide it. A
        # reply in a thread has no other place.
        is_stop = bool(topic.events) and topic.events[0].name in FREEZE_EVENTS
        if is_stop and fallback not in {"", topic.channel}:
            topic.channel = fallback
            return 0.0
        logger.warning("note.dropped topic=%s why=%s", topic.key, error.error)
        if topic.notes and topic.notes[0].called:
            topic.called[topic.notes[0].called] = error.error
        await self._drop_first(topic)
        return 0.0

    async def _failed(self, topic: Topic) -> float:
        topic.failures += 1
        # Exponential up to the longest wait: eight failures take about two minutes,
        # longer than a failover of the store.
        if topic.failures < GIVE_UP_AFTER:
            return min(_LONGEST_WAIT_S, 2.0 ** min(topic.failures, 10))
        now = self.updater.clock()
        if not topic.is_card_next(now):
            logger.error("publisher.gave_up topic=%s", topic.key)
            await self._drop_first(topic)
        elif not topic.is_plain:
            logger.error("card.broken topic=%s", topic.key)
            topic.is_plain = True
        else:
            logger.error("publisher.quarantined topic=%s", topic.key)
            topic.card_at = now + _QUARANTINE_S
        topic.failures = 0
        return 0.0

    async def _drop_first(self, topic: Topic) -> None:
        if topic.notes:
            await self._drop_line(topic)
        else:
            many = len(topic.events) if topic.summary_channel else 1
            await self.updater.acknowledge(topic, topic.events[:many])

    async def _drop_line(self, topic: Topic) -> None:
        line = topic.notes[0]
        # Acknowledged before it leaves memory; if the store is away, the line stays
        # first and is said again. Lines without a seq (mentions, reports) have no
        # event.
        await self.updater.outbox.done(*([line.seq] if line.seq else []))
        topic.notes.pop(0)
        if line.escalated is not None:
            topic.called = {}
