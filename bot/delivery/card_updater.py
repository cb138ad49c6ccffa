"""Keep a card up to date; fall back when Slack refuses it.

A card that needs people is retried as long as it needs them: in its channel, then in
the fallback channel, then again with backoff. The store keeps an index of missing
cards, so a restart continues. In the meantime the Home tab lists the approval, and its
requester gets one message about the failure.

Calls of one card that fail while a reply waits for Slack's rate limit share that reply.
Each event is acknowledged after its reply.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from keyturn.bot import web
from keyturn.bot.cards import reminders
from keyturn.bot.cards.channel_messages import corrupt_record
from keyturn.bot.cards.frame import is_table
from keyturn.bot.cards.history import failures_note
from keyturn.bot.delivery.card_publisher import (
    CardPublisher,
    CopyUpdater,
    find_card,
    policy_decision_digest,
    posting,
    with_unreachable,
)
from keyturn.bot.delivery.event_messages import mention_newly_needed, messages_of
from keyturn.bot.delivery.outbox_queue import PROGRESS, QueuedMessage, QueueEntry
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.executing import CLAIMED
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.events.outbox import Outbox
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.reviewers.cards import CardPlace, CardTrouble

logger = logging.getLogger(__name__)

RETRY_FOR_S = 24 * 3600.0
"""Time that Slack may fail to respond before a message or a card is given up.

A card is given up only if its approval is over as well. The time counts from the first
of consecutive failures, as seen by one publisher; a restart counts from zero.
"""

NO_RESPONSE = "no_response"
"""Reason for giving up a card that Slack did not refuse."""

BROKEN_S = 60.0
"""Seconds until a retry when Slack refuses the bot as a whole."""

_LONGEST_WAIT_S = 30.0
_FIRST_WAIT_S = 0.5


_FAILURES = frozenset({EventName.ITEM_FAILED, EventName.ITEM_IN_DOUBT})


def queue_messages(
    entry: QueueEntry, event: Event, found: list[QueuedMessage], approval: Approval
) -> None:
    """Queue the messages for an event; failures that wait together share a reply."""
    if not (approval.is_batch and len(found) == 1 and event.name in _FAILURES):
        entry.messages += found
        return
    own = replace(found[0], failures=(event,))
    last = entry.messages[-1] if entry.messages else own
    is_alike = last.mentioned_roles == own.mentioned_roles and {
        one.name for one in last.failures
    } == {event.name}
    if last is own or not is_alike:
        entry.messages.append(own)
        return
    events = (*last.failures, event)
    call = reminders.Call(failures_note(events, approval), own.mentioned_roles)
    calls = {one.item for one in events}
    in_doubt = [one for one in approval.items if one.state is ItemState.IN_DOUBT]
    asking = next((item for item in in_doubt if item.id in calls), None)
    if asking is not None and event.name is EventName.ITEM_IN_DOUBT:
        call = reminders.with_reviewers(call.message, approval, asking)
    entry.messages[-1] = replace(
        last, message=call.message, failures=events, mentioned_roles=call.roles
    )


_RUNNING = {ItemState.AUTHORIZED, *CLAIMED}


def _is_progress(approval: Approval, events: Sequence[Event]) -> bool:
    """Return whether calls of a table just run, so that its card may wait for the last.

    Slack accepts about one update a second, and a table of 99 calls would use them up.
    The thread reports each failure immediately.
    """
    states = {item.state for item in approval.items}
    return (
        is_table(approval)
        and bool(events)
        and not states.isdisjoint(_RUNNING)
        and ItemState.PENDING not in states
        and all(event.name in PROGRESS for event in events)
    )


@dataclass(frozen=True, slots=True)
class CardUpdater:
    """Posts and updates the cards of one tenant.

    Attributes:
        card_publisher: makes the calls.
        copies: brings the personal copies of cards up to date.
        outbox: receives the acknowledgements.
        read: returns an approval as its card shows it, and the time; None for an
            unknown id.
        clock: seconds, monotonic.
    """

    card_publisher: CardPublisher
    copies: CopyUpdater
    outbox: Outbox
    read: Callable[[str], Awaitable[Loaded | None]]
    clock: Callable[[], float]

    def has_timed_out(self, entry: QueueEntry) -> bool:
        """Return whether Slack has not responded about an entry for `RETRY_FOR_S`."""
        since = entry.failing_since
        return since is not None and self.clock() - since >= RETRY_FOR_S

    async def show(self, entry: QueueEntry) -> None:
        """Make the next call that brings the card of an entry up to date, if any."""
        # Copied before the record is read: later events may be about a newer record.
        wanted, events = entry.wanted, list(entry.events)
        try:
            loaded = await self.read(entry.approval)
        except CorruptRecord as error:
            await self._reply_corrupt(entry, error)
            return
        if loaded is None:
            await replace_erased(self.card_publisher, entry.approval, events)
            await self._done(entry, wanted)
            await self.acknowledge(entry, events)
            return
        record, now_ms = loaded.approval, loaded.now_ms
        entry.may_wait = not entry.is_missed and _is_progress(record, events)
        place = await self._place(entry, record)
        # An edit whose event is unread will mention people itself.
        is_told = entry.is_missed or any(e.version == record.version for e in events)
        is_known = place is None or place.rev == record.rev or is_told
        record = with_unreachable(record, place.copies if place else {})
        if self._needs_call(entry, record, place):
            try:
                place = await self._make(entry, record, place, now_ms)
            except web.SlackError as error:
                why = self._why_refused(entry, record, error)
                if await self._refused(entry, record, why):
                    await self._queue_messages(entry, record, events)
                return
            record = with_unreachable(record, place.copies if place else {})
            # Either another publisher posted the card first, possibly with an older
            # rev; or this call searched for the card; or copies are outdated, one step
            # each.
            if self._needs_call(entry, record, place):
                return
        elif entry.is_missed:
            await self._unmark(record.id)
        # Not `entry.wanted`: an event that arrived during Slack's answer raised it, and
        # the card has to be drawn once more for that event.
        entry.shown, entry.refusals = wanted, 0
        await self._queue_messages(entry, record, events)
        # After the reply about the edit itself. If the edit's event is unread, it will
        # mention the same people; doing it now would notify them twice.
        if is_known:
            mention_newly_needed(entry, record, place, now_ms)

    def _why_refused(
        self, entry: QueueEntry, record: Approval, error: web.SlackError
    ) -> str:
        """Return Slack's error code; raise the error again if it is to be retried."""
        if isinstance(error, web.SlackRefused):
            return error.error
        # An approval that is not over needs its card until it expires.
        if reminders.is_over(record) and self.has_timed_out(entry):
            return NO_RESPONSE
        raise error

    async def _done(self, entry: QueueEntry, wanted: int) -> None:
        """Stop updating a card: nothing on it can be decided."""
        entry.shown = wanted
        await self._unmark(entry.approval)

    async def _unmark(self, approval: str) -> None:
        publisher = self.card_publisher
        await publisher.cards.unmark(publisher.keys, approval)

    async def _reply_corrupt(self, entry: QueueEntry, error: CorruptRecord) -> None:
        """Queue a reply under the card of a corrupt record: it is void."""
        log_failure(logger, error, "publisher.corrupt_record")
        await self._done(entry, entry.wanted)
        place = await self.card_publisher.place(entry.approval)
        if place is not None:
            message = corrupt_record(entry.approval)
            # A copy, since the loop removes from the list.
            for event in list(entry.events):
                if event.name is EventName.RECORD_QUARANTINED:
                    queued = QueuedMessage(message, event.seq, place.channel, place.ts)
                    entry.messages.append(queued)
                    entry.events.remove(event)
        await self.acknowledge(entry, list(entry.events))

    async def _place(self, entry: QueueEntry, record: Approval) -> CardPlace | None:
        """Look up the card's channel and ts; store them in the entry."""
        place = await self.card_publisher.place(record.id)
        # A notification in a summary message has no separate card. When its call
        # becomes doubtful, people need buttons, so it gets a card.
        if place is not None and place.is_in_summary and reminders.needs_people(record):
            await self._forget(record.id, (place.channel, place.ts))
            place = None
        entry.is_new = place is None
        if place is None and "" not in entry.unsent:
            publisher = self.card_publisher
            entry.begun_in = await publisher.cards.begun_in(publisher.keys, record.id)
        entry.place = None if place is None else (place.channel, place.ts)
        entry.copies = {} if place is None else place.places
        return place

    def _is_outdated(
        self, entry: QueueEntry, record: Approval, place: CardPlace | None
    ) -> bool:
        """Return whether the card needs a call: a search, a post or an update."""
        if place is None:
            has_channel = bool(entry.channel or record.channel)
            return bool(entry.lost_in) or (reminders.has_card(record) and has_channel)
        if entry.may_wait:
            return False
        # Not `!=`: a publisher that was paused between its two reads may have an older
        # record than the card shows, and must not overwrite the newer card.
        is_older = place.rev < record.rev
        is_evaluated_differently = place.decision_digest != policy_decision_digest(
            record, self.card_publisher.seal_key, sent=place.sent
        )
        return is_older or (place.rev == record.rev and is_evaluated_differently)

    def _needs_call(
        self, entry: QueueEntry, record: Approval, place: CardPlace | None
    ) -> bool:
        """Return whether card or copies need a call; `copy_due` is that for a copy.

        Copies follow the newest state of the card, which then lists their recipients.
        """
        is_outdated = self._is_outdated(entry, record, place)
        entry.copy_due = None
        # A card that Slack refuses to change must not keep its copies outdated.
        is_first = is_outdated and not entry.refusals
        if place is not None and not (is_first and place.rev < record.rev):
            entry.copy_due = self.copies.next_call(entry, record, place)
        return is_outdated or entry.copy_due is not None

    async def _make(
        self, entry: QueueEntry, record: Approval, place: CardPlace | None, now_ms: int
    ) -> CardPlace | None:
        """Make the call that is needed; return the card's current place."""
        if entry.lost_in:
            return await find_card(self.card_publisher, entry, record)
        if place is None:
            return await self._post(entry, record, now_ms)
        if entry.copy_due is None:
            return await self.card_publisher.update_card(
                record, place, now_ms=now_ms, is_plain=entry.is_plain
            )
        await self.copies.make(entry, entry.copy_due, record, place, now_ms=now_ms)
        return await self._place(entry, record) or place

    async def _post(
        self, entry: QueueEntry, record: Approval, now_ms: int
    ) -> CardPlace:
        """Post the card; return its registered copy."""
        channel, is_plain = entry.channel or record.channel, entry.is_plain
        with posting(entry):
            place = await self.card_publisher.post_card(
                record, channel=channel, now_ms=now_ms, is_plain=is_plain
            )
        entry.is_new, entry.place = False, (place.channel, place.ts)
        if is_plain:
            return place
        return await self.card_publisher.record_mentions(place, record)

    async def _refused(self, entry: QueueEntry, record: Approval, why: str) -> bool:
        """Choose the fallback; return whether messages are posted without the card."""
        # No fallback channel: Slack refuses the bot as a whole, not this card.
        if why in web.NOT_ABOUT_THE_CARD:
            logger.error("publisher.bot_refused error=%s", why)
            entry.card_at = self.clock() + BROKEN_S
        # Slack counts text by an unpublished rule, so the local budget may be wrong.
        # The plain card allows only rejection, but keeps the call from being stuck
        # without a card.
        elif why in web.ABOUT_THE_BLOCKS and not entry.is_plain:
            logger.error("card.refused entry=%s why=%s", entry.key, why)
            entry.is_plain = True
        elif record.is_auto_approved and not reminders.needs_people(record):
            # A notification needs no decision, and the audit log records it.
            logger.error("notification.undeliverable entry=%s why=%s", entry.key, why)
            entry.shown = entry.wanted
            await self.acknowledge(entry, list(entry.events))
        elif not await self._post_elsewhere(entry, record, why):
            await self._retry_later(entry, record, why)
            return True
        return False

    async def _post_elsewhere(
        self, entry: QueueEntry, approval: Approval, why: str
    ) -> bool:
        """Prepare a post to the fallback channel or a new post; False if impossible."""
        fallback = self.card_publisher.config.fallback_channel
        if entry.place is None:
            # `entry.channel` as well: if the fallback channel refused the card too, the
            # two would be tried in turn for ever.
            if fallback in {"", entry.channel, approval.channel}:
                return False
            logger.error("card.diverted entry=%s why=%s", entry.key, why)
            entry.refused = (approval.channel, why)
            entry.channel = fallback
            return True
        has_other = fallback not in {"", entry.place[0]}
        # A second card is posted only if people still have to act. Otherwise the old
        # one stays: two cards with different states are worse than one outdated card.
        if not reminders.needs_people(approval) or not (
            why in web.NEVER_UPDATED or has_other
        ):
            return False
        # Forget the place before the new card is posted, or `register` would delete the
        # new one as a surplus copy. The place is compared: if another publisher
        # registered one in the meantime, it stays.
        logger.error("card.lost entry=%s why=%s", entry.key, why)
        await self._forget(approval.id, entry.place)
        entry.is_new, entry.place = True, None
        return True

    async def _forget(self, approval: str, at: tuple[str, str]) -> None:
        publisher = self.card_publisher
        await publisher.cards.forget_message(publisher.keys, approval, at)

    async def _retry_later(
        self, entry: QueueEntry, approval: Approval, why: str
    ) -> None:
        """Retry with backoff; report it to the requester and on the Home tab."""
        cards, place = self.card_publisher.cards, entry.place
        # Only the first refusal is logged as an error: retries follow every half minute
        # and would fill the log.
        level = logging.INFO if entry.refusals else logging.ERROR
        logger.log(level, "card.undeliverable entry=%s why=%s", entry.key, why)
        channel = place[0] if place else approval.channel
        # The report names the channel of the policy, not the fallback channel that was
        # tried after it.
        first = entry.refused or (channel, why)
        entry.refused, entry.channel = None, ""
        entry.refusals += 1
        # The exponent is bounded: hours of refusals would overflow the float. 2**10 is
        # far above the longest wait.
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(entry.refusals, 10))
        entry.card_at = self.clock() + wait_s
        trouble = CardTrouble(channel=first[0], why=first[1])
        await cards.keep_trouble(self.card_publisher.keys, approval.id, trouble)
        await self._queue_report(entry, approval, trouble)
        # After the first refusal the copies come first; then the card is tried once
        # more.
        is_last = entry.refusals > 1 or not entry.copies
        if reminders.is_over(approval) and is_last:
            await self._done(entry, entry.wanted)
        else:
            # Before its events are acknowledged, which do not wait for the card.
            await cards.mark_outdated(self.card_publisher.keys, approval.id)

    async def _queue_report(
        self, entry: QueueEntry, approval: Approval, trouble: CardTrouble
    ) -> None:
        """Queue one report that the card is missing or outdated."""
        what = "over" if reminders.is_over(approval) else "waiting"
        if what == "waiting" and not reminders.needs_people(approval):
            return  # approved: the result will be reported at its end
        # The store records a report only after it is posted. A queued report must not
        # be queued again by the next refusal.
        if any(queued.report_key == what for queued in entry.messages):
            return
        publisher = self.card_publisher
        if await publisher.cards.was_reported(publisher.keys, approval.id, what):
            return
        channel, thread_ts = _report_target(entry, approval, trouble.why)
        if channel:
            is_posted = entry.place is not None
            message = reminders.undelivered(
                approval, channel=trouble.channel, why=trouble.why, is_posted=is_posted
            )
            queued = QueuedMessage(message, "", channel, thread_ts, report_key=what)
            entry.messages.append(queued)

    async def _queue_messages(
        self, entry: QueueEntry, record: Approval, events: Sequence[Event]
    ) -> None:
        """Queue the messages for events; acknowledge events that need none."""
        silent: list[Event] = []
        copies = {u: at for u, at in entry.copies.items() if u not in entry.just_sent}
        entry.just_sent.clear()
        for event in events:
            # An event leaves `entry.events` when its message is queued, but is
            # acknowledged only after the post (`QueuedMessage.seqs`). After a crash in
            # between it is read again.
            found = messages_of(event, record, entry.place, copies)
            if found:
                queue_messages(entry, event, found, record)
                entry.events.remove(event)
            else:
                silent.append(event)
        await self.acknowledge(entry, silent)

    async def acknowledge(self, entry: QueueEntry, events: list[Event]) -> None:
        """Acknowledge events of an entry."""
        # First the store, then memory: if the store fails, the events stay on the entry
        # and the step is retried.
        await self.outbox.done(*(event.seq for event in events))
        for event in events:
            entry.events.remove(event)


def _report_target(
    entry: QueueEntry, approval: Approval, why: str
) -> tuple[str, str | None]:
    """Return where to report a failed card: in its thread, or to the requester."""
    if entry.place is not None and why in web.STILL_THERE:
        return entry.place
    if approval.origin is not None:
        return approval.origin.channel, approval.origin.thread_ts
    return (approval.requester.user if approval.requester else ""), None


async def replace_erased(
    publisher: CardPublisher, approval: str, events: Iterable[Event]
) -> None:
    """Replace the card of an erased approval, and its copies.

    Only if one of these events reports the erasure.

    Raises:
        SlackError: Slack did not answer. A message whose replacement it refuses stays.
    """
    if not any(one.name is EventName.APPROVAL_ERASED for one in events):
        return
    place = await publisher.place(approval)
    # A collected card shows other calls as well; their next change draws it anew.
    if place is None or place.collected:
        return
    for channel, ts in [(place.channel, place.ts), *place.places.values()]:
        try:
            await publisher.update(channel, ts, reminders.erased())
        except web.SlackRefused as error:
            logger.warning("card.not_erased id=%s why=%s", approval, error.error)
