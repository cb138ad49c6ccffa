"""Make the next Slack call for one topic, with backoff, fallbacks and quarantine.

The card comes first, then its thread replies. A call to which Slack does not respond is
repeated for `RETRY_FOR_S`, and for a card at least until the approval is over. Then it
is given up, which is logged as an error.
"""

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
from twokey.bot.delivery.event_messages import message_without_card
from twokey.bot.delivery.outbox_queue import Call, Topic
from twokey.bot.limits import POST
from twokey.bot.web import SlackError, SlackRefused
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)

GIVE_UP_AFTER = 8
"""Errors of our own code in a row before the next fallback: drop a message; for a card,
post a plain one, then quarantine it.

Failures of Slack and of the store do not count: they say nothing about the message.
"""

_LONGEST_WAIT_S = 30.0
_QUARANTINE_S = 600.0
"""Until the next attempt at a quarantined card; they end when its record is deleted."""


@dataclass(frozen=True, slots=True)
class EventDispatcher:
    """Makes the calls for the topics of one tenant.

    Attributes:
        updater: makes those for cards.
        channel: returns the channel for messages without a card and a thread.
    """

    updater: CardUpdater
    channel: Callable[[], str]

    @property
    def card_publisher(self) -> CardPublisher:
        """Return the client that makes the calls."""
        return self.updater.card_publisher

    def next_call(self, topic: Topic) -> Call | None:
        """Return the call that a topic probably needs next; None for none."""
        if topic.summary_channel:
            return Call(POST, topic.summary_channel)
        if topic.is_card_next(self.updater.clock()):
            return self.updater.next_call(topic)
        if topic.messages:
            return Call(POST, topic.messages[0].channel)
        if topic.events and run_messages.is_about_outage(topic.events[0]):
            return run_messages.call_for(topic, topic.events[0])
        channel = self._channel(topic, topic.events[0]) if topic.events else ""
        return Call(POST, channel) if channel else None

    async def step(self, topic: Topic, reserved: Call | None) -> float:
        """Make the next call for a topic; return the seconds until the one after it.

        Failures of Slack, of the store and of our own code are not raised. They are
        retried with backoff; what can never succeed is logged and quarantined.

        Args:
            topic: to work on.
            reserved: the call for which a rate limit token was taken.
        """
        # The token is not given back after a failure or a 429: the call may have
        # reached Slack, which then counts it.
        try:
            return await self._attempt(topic, reserved)
        except RateLimitDelay as error:
            return error.wait_s
        except StoreUnavailable as error:
            # Without a limit here: while the store is down the outbox cannot be read
            # either, which ends the term of this publisher.
            return _backoff(topic, error)

    async def _attempt(self, topic: Topic, reserved: Call | None) -> float:
        try:
            try:
                is_made = await self._next(topic, reserved)
            except SlackRefused as error:
                return await self._refused(topic, error)
            except SlackError as error:
                return await self._unanswered(topic, error)
        # `step` handles these, also from the two handlers above. The next handler is
        # for errors of our own code only.
        except (RateLimitDelay, StoreUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - one topic must not stop the others
            log_failure(logger, error, "publisher.failed topic=%s", topic.key)
            return await self._failed(topic)
        # Only after success: after a failure Slack may have counted the call.
        if reserved is not None and not is_made:
            self.card_publisher.limits.give_back(*reserved)
        topic.failures, topic.errors, topic.failing_since = 0, 0, None
        return 0.0

    async def _next(self, topic: Topic, reserved: Call | None) -> bool:
        """Make the next call; return whether it was the reserved one."""
        if topic.summary_channel:
            return await self._post_summary(topic)
        if topic.is_card_next(self.updater.clock()):
            return await self.updater.show(topic, reserved)
        if topic.messages:
            return await self._post_queued(topic)
        # There is an event: the queue drops a topic with nothing left to post.
        if run_messages.is_about_outage(topic.events[0]):
            return await self._show_outage(topic, reserved)
        return await self._post_without_card(topic)

    async def _post_queued(self, topic: Topic) -> bool:
        queued, keys = topic.messages[0], self.updater.keys
        cards, message = self.card_publisher.cards, queued.message
        if queued.escalation_of is not None:
            # Rendered now and not when it was queued: it names the channels that could
            # not be notified, which is known after the messages before it.
            message = escalation(queued.escalation_of, topic.escalation_results)
        await self.card_publisher.post(
            queued.channel, message, thread_ts=queued.thread_ts
        )
        # Recorded after the post: a crash in between posts the message twice, while the
        # other order could lose it.
        if queued.escalated_to:
            topic.escalation_results[queued.escalated_to] = ""
        if queued.mentioned_roles:
            await cards.asked(keys, topic.approval, queued.mentioned_roles)
            topic.mentioned_roles |= queued.mentioned_roles
        if queued.report_key:
            await cards.told(keys, topic.approval, queued.report_key)
        await self._drop_message(topic)
        return True

    async def _post_without_card(self, topic: Topic) -> bool:
        event = topic.events[0]
        channel = self._channel(topic, event)
        # "I am working on it" is left out when the answer is queued already.
        is_last = len(topic.events) == 1
        message = message_without_card(
            event, command=self.card_publisher.command, is_last=is_last
        )
        is_posted = message is not None and bool(channel)
        if message is not None and channel:
            thread_ts = event.data.get("thread_ts") or None
            await self.card_publisher.post(channel, message, thread_ts=thread_ts)
        await self.updater.acknowledge(topic, [event])
        return is_posted

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
            place = await self.card_publisher.post(
                topic.summary_channel,
                many_ran(events, command=self.card_publisher.command),
            )
            # In order and each once: `folded` registers the message under the last
            # approval, whose record lives longest.
            approvals = [*dict.fromkeys(event.approval for event in ran)]
            await self.card_publisher.cards.folded(self.updater.keys, approvals, *place)
        await self.updater.acknowledge(topic, events)
        return bool(ran)

    def _channel(self, topic: Topic, event: Event) -> str:
        if event.name in FREEZE_EVENTS:
            return topic.channel or self.channel()
        return event.data.get("channel") or event.channel

    async def _refused(self, topic: Topic, error: SlackRefused) -> float:
        """Drop a message that Slack refuses; post a freeze in the fallback channel.

        Never a card: `CardUpdater.show` handles its refusals.
        """
        topic.failures += 1
        if error.error in NOT_ABOUT_THE_CARD:
            logger.error("publisher.bot_refused error=%s", error.error)
            return BROKEN_S
        fallback = self.updater.fallback_channel
        # Everybody has to learn of a freeze, so a channel that refuses must not hide
        # it. A thread reply has no other channel.
        is_freeze = bool(topic.events) and topic.events[0].name in FREEZE_EVENTS
        if is_freeze and fallback not in {"", topic.channel}:
            topic.channel = fallback
            return 0.0
        logger.warning("note.dropped topic=%s why=%s", topic.key, error.error)
        if topic.messages and topic.messages[0].escalated_to:
            topic.escalation_results[topic.messages[0].escalated_to] = error.error
        await self._drop_first(topic)
        return 0.0

    async def _unanswered(self, topic: Topic, error: SlackError) -> float:
        """Retry a call to which Slack did not respond; give up a message at last.

        `CardUpdater.show` gives up cards, as it knows when an approval is over.
        """
        now = self.updater.clock()
        if topic.failing_since is None:
            topic.failing_since = now
        # Not reset here: in an outage that lasts, each message behind this one gets one
        # more attempt and not another `RETRY_FOR_S`.
        if self.updater.has_timed_out(topic) and not topic.is_card_next(now):
            logger.error("publisher.gave_up topic=%s why=%s", topic.key, error)
            await self._drop_first(topic)
        return _backoff(topic, error)

    async def _failed(self, topic: Topic) -> float:
        """Retry after an error of our own code; fall back after `GIVE_UP_AFTER`."""
        topic.failures += 1
        topic.errors += 1
        # Exponential up to the longest wait: eight errors take about two minutes.
        if topic.errors < GIVE_UP_AFTER:
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
        topic.failures = topic.errors = 0
        return 0.0

    async def _drop_first(self, topic: Topic) -> None:
        if topic.messages:
            await self._drop_message(topic)
        else:
            many = len(topic.events) if topic.summary_channel else 1
            await self.updater.acknowledge(topic, topic.events[:many])

    async def _drop_message(self, topic: Topic) -> None:
        queued = topic.messages[0]
        # Acknowledged before it leaves memory; if the store fails, the message stays
        # first and is posted again. Mentions and reports have no event to acknowledge.
        await self.updater.outbox.done(*([queued.seq] if queued.seq else []))
        topic.messages.pop(0)
        if queued.escalation_of is not None:
            topic.escalation_results = {}


def _backoff(topic: Topic, error: Exception) -> float:
    """Count a failure; return the seconds until the retry."""
    logger.warning("publisher.retrying topic=%s why=%s", topic.key, error)
    topic.failures += 1
    return min(_LONGEST_WAIT_S, 0.5 * 2.0 ** min(topic.failures, 10))
