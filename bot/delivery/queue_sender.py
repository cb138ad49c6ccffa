"""Make the next Slack call for a queue entry, with backoff, fallbacks and quarantine.

The card comes first, then its thread replies. A call to which Slack does not respond is
repeated for `RETRY_FOR_S`, and for a card at least until the approval is over. Then it
is given up, and the log records an error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from keyturn.bot import web
from keyturn.bot.blocks import Message
from keyturn.bot.cards.channel_messages import flood_message, shortened
from keyturn.bot.cards.metrics_messages import METRICS_EVENTS
from keyturn.bot.cards.reminders import escalation
from keyturn.bot.cards.special_cards import many_ran
from keyturn.bot.delivery import event_messages
from keyturn.bot.delivery.card_publisher import RESERVED, CardPublisher, RateLimitDelay
from keyturn.bot.delivery.card_updater import BROKEN_S, CardUpdater
from keyturn.bot.delivery.collecting import Collector
from keyturn.bot.delivery.event_messages import POSTED_IN_CHANNEL, message_without_card
from keyturn.bot.delivery.outbox_queue import QueueEntry
from keyturn.bot.limits import POST
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure

logger = logging.getLogger(__name__)

GIVE_UP_AFTER = 8
"""Errors of our own code in a row before the next fallback: drop a message; for a card,
post a plain one, then quarantine it.

Failures of Slack and of the store do not count: they say nothing about the message.
"""

_LONGEST_WAIT_S = 30.0
_QUARANTINE_S = 600.0
"""Seconds until the next attempt at a quarantined card.

The attempts end when its record is deleted.
"""


@dataclass(frozen=True, slots=True)
class QueueSender:
    """Makes the calls for the entries of one tenant.

    Attributes:
        updater: makes those for cards.
        collector: finds the approvals that share a card.
    """

    updater: CardUpdater
    collector: Collector

    @property
    def card_publisher(self) -> CardPublisher:
        """Return the client that makes the calls."""
        return self.updater.card_publisher

    async def step(self, entry: QueueEntry) -> float:
        """Make the next call for an entry; return the seconds until the one after it.

        Failures of Slack, of the store and of Keyturn's code are not raised. They are
        retried with backoff; calls that can never succeed are logged and quarantined.
        """
        try:
            wait_s = await self._attempt(entry)
        except RateLimitDelay as error:
            entry.delayed_by = error.call
            return error.wait_s
        except StoreUnavailable as error:
            # Without a limit here: while the store is down the outbox cannot be read
            # either, which ends the term of this publisher.
            return _backoff(entry, error)
        entry.delayed_by = None
        return wait_s

    async def _attempt(self, entry: QueueEntry) -> float:
        try:
            try:
                await self._next(entry)
            except web.SlackRefused as error:
                return await self._refused(entry, error)
            except web.SlackError as error:
                return await self._unanswered(entry, error)
        # `step` handles these, also from the two handlers above. The next handler is
        # only for errors of Keyturn's code.
        except (RateLimitDelay, StoreUnavailable):
            raise
        except any_failure() as error:  # one entry must not stop the others
            log_failure(logger, error, "publisher.failed entry=%s", entry.key)
            return await self._failed(entry)
        entry.failures, entry.errors, entry.failing_since = 0, 0, None
        return 0.0

    async def _next(self, entry: QueueEntry) -> None:
        if entry.summary_channel:
            await self._post_summary(entry)
        elif entry.is_card_next(self.updater.clock()):
            if not await self.collector.takes(entry):
                await self.updater.show(entry)
        elif entry.messages:
            await self._post_queued(entry)
        # There is an event: the queue drops an entry with nothing left to post.
        elif event_messages.is_about_outage(event := entry.events[0]):
            if await event_messages.show(self.card_publisher, entry):
                await self.updater.acknowledge(entry, [event])
        else:
            await self._post_without_card(entry)

    async def _post_queued(self, entry: QueueEntry) -> None:
        queued, keys = entry.messages[0], self.card_publisher.keys
        cards, message = self.card_publisher.cards, queued.message
        if queued.escalation_of is not None:
            # Rendered now and not when it was queued: it names the channels that could
            # not be notified, which is known after the messages before it.
            results = entry.escalation_results
            message = escalation(queued.escalation_of, results).message
        self.card_publisher.take(POST, queued.channel, RESERVED)
        at = await self.card_publisher.post(
            queued.channel, message, thread_ts=queued.thread_ts
        )
        await self.card_publisher.note(entry.approval, *at)
        # Recorded after the post: a crash in between posts the message twice, while the
        # other order could lose it.
        if queued.escalated_to:
            entry.escalation_results[queued.escalated_to] = ""
        if queued.mentioned_roles:
            await cards.mark_mentioned(keys, entry.approval, queued.mentioned_roles)
            entry.mentioned_roles |= queued.mentioned_roles
        if queued.report_key:
            await cards.mark_reported(keys, entry.approval, queued.report_key)
        await self._drop_message(entry)

    async def _post_without_card(self, entry: QueueEntry) -> None:
        event = entry.events[0]
        channel = self._channel(entry, event)
        # "I am working on it" is omitted if the answer is queued already.
        is_last = len(entry.events) == 1
        message = message_without_card(
            event,
            command=self.card_publisher.config.command,
            is_last=is_last,
            is_plain=entry.is_plain,
        )
        is_flood = event.name is EventName.AGENT_FLOODS
        if channel and (message is not None or is_flood):
            self.card_publisher.take(POST, channel, RESERVED)
            # Made after the rate limit allows a post: it reads all waiting calls.
            message = message or await self._flood_message(entry, event)
            thread_ts = event.data.get("thread_ts") or None
            await self.card_publisher.post(channel, message, thread_ts=thread_ts)
        await self.updater.acknowledge(entry, [event])
        # Only for this message: the workspace may accept the next one.
        entry.is_plain = False

    async def _flood_message(self, entry: QueueEntry, event: Event) -> Message:
        publisher, queue = self.card_publisher, self.collector.service.queue
        waiting = await queue.waiting_by_tool(event.agent, self._channel(entry, event))
        team, key = publisher.me.team, publisher.seal_key
        message = flood_message(event, *waiting, key=key, team=team)
        return shortened(message) if entry.is_plain else message

    async def _post_summary(self, entry: QueueEntry) -> None:
        """Post one message about many notifications; it is never updated."""
        events = list(entry.events)
        ran = [one for one in events if one.name is EventName.ITEM_AUTHORIZED]
        if ran:
            self.card_publisher.take(POST, entry.summary_channel, RESERVED)
            place = await self.card_publisher.post(
                entry.summary_channel,
                many_ran(events, command=self.card_publisher.config.command),
            )
            # In order and each once: the message is registered under the last approval,
            # whose record lives longest.
            approvals = [*dict.fromkeys(event.approval for event in ran)]
            await self.card_publisher.note(approvals[-1], *place)
            await self.card_publisher.cards.shown_in_summary(
                self.card_publisher.keys, approvals, *place
            )
        await self.updater.acknowledge(entry, events)

    def _channel(self, entry: QueueEntry, event: Event) -> str:
        if event.name in METRICS_EVENTS:
            return entry.channel or event.channel
        if event.name in POSTED_IN_CHANNEL:
            return entry.channel or self.collector.service.policy_now.defaults.channel
        return event.data.get("channel") or event.channel

    async def _refused(self, entry: QueueEntry, error: web.SlackRefused) -> float:
        """Drop a message that Slack refuses also in its plain form, or for its channel.

        A message without a thread has a fallback channel. `CardUpdater.show` handles
        refusals of cards.
        """
        entry.failures += 1
        if error.error in web.NOT_ABOUT_THE_CARD:
            logger.error("publisher.bot_refused error=%s", error.error)
            return BROKEN_S
        # A workspace may not have charts, and how Slack counts text is not documented.
        if error.error in web.ABOUT_THE_BLOCKS and _made_plain(entry):
            event = entry.events[0].name if entry.events else "reply"
            logger.warning("message.made_plain event=%s why=%s", event, error.error)
            return 0.0
        fallback = self.card_publisher.config.fallback_channel
        # People have to learn of a freeze and of an alert, so a refusal by the channel
        # must not hide it. A thread reply has no other channel.
        is_in_channel = bool(entry.events) and entry.events[0].name in POSTED_IN_CHANNEL
        if is_in_channel and fallback not in {"", entry.channel}:
            entry.channel = fallback
            return 0.0
        logger.warning("message.dropped entry=%s why=%s", entry.key, error.error)
        if entry.messages and entry.messages[0].escalated_to:
            entry.escalation_results[entry.messages[0].escalated_to] = error.error
        await self._drop_first(entry)
        return 0.0

    async def _unanswered(self, entry: QueueEntry, error: web.SlackError) -> float:
        """Retry a call to which Slack did not respond; finally give up a message.

        `CardUpdater.show` gives up cards, because that depends on the approval's end.
        """
        now = self.updater.clock()
        if entry.failing_since is None:
            entry.failing_since = now
        # Not reset here: in a long outage, each later message gets one more attempt and
        # not another `RETRY_FOR_S`.
        if self.updater.has_timed_out(entry) and not entry.is_card_next(now):
            logger.error("publisher.gave_up entry=%s why=%s", entry.key, error)
            await self._drop_first(entry)
        return _backoff(entry, error)

    async def _failed(self, entry: QueueEntry) -> float:
        """Retry after an error of Keyturn's code; fall back after `GIVE_UP_AFTER`."""
        entry.failures += 1
        entry.errors += 1
        # Exponential up to the longest wait: eight errors take about two minutes.
        if entry.errors < GIVE_UP_AFTER:
            return min(_LONGEST_WAIT_S, 2.0 ** min(entry.failures, 10))
        now = self.updater.clock()
        if not entry.is_card_next(now):
            logger.error("publisher.gave_up entry=%s", entry.key)
            await self._drop_first(entry)
        elif not entry.is_plain:
            logger.error("card.broken entry=%s", entry.key)
            entry.is_plain = True
        else:
            logger.error("publisher.quarantined entry=%s", entry.key)
            entry.card_at = now + _QUARANTINE_S
        entry.failures = entry.errors = 0
        return 0.0

    async def _drop_first(self, entry: QueueEntry) -> None:
        if entry.messages:
            await self._drop_message(entry)
        else:
            many = len(entry.events) if entry.summary_channel else 1
            is_of_card = any(event.card for event in entry.events)
            await self.updater.acknowledge(entry, entry.events[:many])
            # Only for this message: the workspace may accept the next one.
            entry.is_plain = entry.is_plain and is_of_card

    async def _drop_message(self, entry: QueueEntry) -> None:
        queued = entry.messages[0]
        # Acknowledged before it leaves memory; if the store fails, the message stays
        # first and is posted again. Mentions and reports have no event to acknowledge.
        await self.updater.outbox.done(*queued.seqs)
        entry.messages.pop(0)
        if queued.escalation_of is not None:
            entry.escalation_results = {}


def _made_plain(entry: QueueEntry) -> bool:
    """Replace the next message by a plainer one; False if there is none."""
    if entry.messages:
        queued = entry.messages[0]
        plain = replace(queued, message=shortened(queued.message), escalation_of=None)
        if queued.escalation_of is not None:
            entry.escalation_results = {}
        entry.messages[0] = plain
        return plain != queued
    event = entry.events[0]
    if entry.is_plain or entry.summary_channel or event.card:
        return False
    # The message of an outage is short, and is drawn in another way.
    entry.is_plain = not event_messages.is_about_outage(event)
    return entry.is_plain


def _backoff(entry: QueueEntry, error: Exception) -> float:
    """Count a failure; return the seconds until the retry."""
    logger.warning("publisher.retrying entry=%s why=%s", entry.key, error)
    entry.failures += 1
    return min(_LONGEST_WAIT_S, 0.5 * 2.0 ** min(entry.failures, 10))
