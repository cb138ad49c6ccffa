"""Keep a card up to date; fall back when Slack refuses it.

A card that needs people is retried as long as it needs them: in its channel, then in
the fallback channel, then again with backoff. The store keeps an index of missing
cards, so a restart continues. Meanwhile the Home tab lists the approval, and its
requester gets one message about the failure.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from keyturn.bot.cards.replaced import erased
from keyturn.bot.cards.reply_texts import corrupt_record
from keyturn.bot.cards.undelivered import has_card, is_over, needs_people
from keyturn.bot.delivery.card_copies import CopyUpdater, find_card, posting
from keyturn.bot.delivery.card_publisher import CardPublisher, policy_decision_digest
from keyturn.bot.delivery.card_replacer import replace_card
from keyturn.bot.delivery.event_messages import (
    is_progress,
    mention_newly_needed,
    messages_of,
)
from keyturn.bot.delivery.failure_replies import FailureReplies, queue_report
from keyturn.bot.delivery.queue_entry import Call, QueuedMessage, QueueEntry
from keyturn.bot.delivery.reach import with_unreachable
from keyturn.bot.limits import HISTORY, POST, UPDATE
from keyturn.bot.web import (
    ABOUT_THE_BLOCKS,
    NEVER_UPDATED,
    NOT_ABOUT_THE_CARD,
    SlackError,
    SlackRefused,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.failures import log_failure
from keyturn.gateway.store.atomic_write import Loaded
from keyturn.gateway.store.cards import CardPlace, CardTrouble
from keyturn.gateway.store.outbox import Outbox

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
    place = await publisher.place(approval)
    # A collected card shows other calls as well, and is drawn anew with the next change
    # of one of them.
    if place is None or place.collected:
        return
    for channel, ts in [(place.channel, place.ts), *place.places.values()]:
        try:
            await publisher.update(channel, ts, erased())
        except SlackRefused as error:
            logger.warning("card.not_erased id=%s why=%s", approval, error.error)


RETRY_FOR_S = 24 * 3600.0
"""How long Slack may fail to respond before a message or a card is given up.

A card is given up only if its approval is over as well. The time counts from the first
failure in a row, as seen by one publisher; a restart counts from zero.
"""

NO_RESPONSE = "no_response"
"""Why a card is given up that Slack did not refuse."""

BROKEN_S = 60.0
"""Seconds until a retry when Slack refuses the bot as a whole."""

_UPDATE, _LOOK = Call(UPDATE, ""), Call(HISTORY, "")
_LONGEST_WAIT_S = 30.0
_FIRST_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class CardUpdater:
    """Posts and updates the cards of one tenant.

    Attributes:
        card_publisher: makes the calls.
        copies: brings the personal copies of cards up to date.
        outbox: where events are acknowledged.
        read: returns an approval as its card shows it, and the time; None for an
            unknown id.
        clock: seconds, never going backwards.
        failures: lets failures of one card share replies.
    """

    card_publisher: CardPublisher
    copies: CopyUpdater
    outbox: Outbox
    read: Callable[[str], Awaitable[Loaded | None]]
    clock: Callable[[], float]
    failures: FailureReplies = field(default_factory=FailureReplies)

    def next_call(self, entry: QueueEntry) -> Call | None:
        """Return the call that a card or a copy of it probably needs; None: unknown."""
        if entry.copy_due is not None:
            return entry.copy_due.call
        call = self._call_for_card(entry)
        # What has to wait for the limit of updates looks for a response URL first.
        if call == _UPDATE and entry.may_have_url:
            return None if self.card_publisher.limits.wait_s(*_UPDATE) else call
        return call

    def _call_for_card(self, entry: QueueEntry) -> Call | None:
        if not entry.is_new or entry.lost_in:
            return _LOOK if entry.lost_in else _UPDATE
        channel = entry.channel or entry.channel_of_card
        return Call(POST, channel) if channel else None

    def has_timed_out(self, entry: QueueEntry) -> bool:
        """Return whether Slack has not responded about an entry for `RETRY_FOR_S`."""
        since = entry.failing_since
        return since is not None and self.clock() - since >= RETRY_FOR_S

    async def show(self, entry: QueueEntry, given: Call | None) -> bool:
        """Bring the card of an entry up to date; return whether the call was made.

        Args:
            entry: of the card.
            given: the call whose rate limit token was taken; another one waits for the
                scheduler to take its token.
        """
        # Copied before the record is read: later events may be about a newer record.
        wanted, events = entry.wanted, list(entry.events)
        try:
            loaded = await self.read(entry.approval)
        except CorruptRecord as error:
            await self._reply_corrupt(entry, error)
            return False
        if loaded is None:
            await replace_erased(self.card_publisher, entry.approval, events)
            await self._done(entry, wanted)
            await self.acknowledge(entry, events)
            return False
        record, now_ms = loaded.approval, loaded.now_ms
        entry.may_wait = not entry.is_missed and is_progress(record, events)
        place = await self._place(entry, record)
        # An edit whose event was not read yet will mention people itself.
        is_told = entry.is_missed or any(e.version == record.version for e in events)
        is_known = place is None or place.rev == record.rev or is_told
        record = with_unreachable(record, place.copies if place else {})
        needed = self._next_call(entry, record, place)
        # The token is for another call than the needed one. The dispatcher gives it
        # back, and the scheduler takes one for the right call.
        replaced = await replace_card(
            self.card_publisher, entry, record, place, now_ms, needed
        )
        if replaced is None and needed not in {None, given}:
            return False
        if needed is not None:
            try:
                place = replaced or await self._make(entry, record, place, now_ms)
            except SlackError as error:
                why = self._why_refused(entry, record, error)
                if await self._refused(entry, record, why):
                    await self._queue_messages(entry, record, events)
                return True
            record = with_unreachable(record, place.copies if place else {})
            # Another publisher posted the card first, and that one may show an older
            # rev; it was looked for; or copies are not up to date, one step each.
            if self._next_call(entry, record, place) is not None:
                return replaced is None
        elif entry.is_missed:
            await self._unmark(record.id)
        # Not `entry.wanted`: an event that arrived while Slack was answering raised it,
        # and the card has to be drawn once more for that one.
        entry.shown, entry.refusals = wanted, 0
        await self._queue_messages(entry, record, events)
        # After the reply about the edit itself. If the event of the edit was not read
        # yet, it will mention the same people; doing it now would notify them twice.
        if is_known:
            mention_newly_needed(entry, record, place, now_ms)
        return needed is not None and replaced is None

    def _why_refused(
        self, entry: QueueEntry, record: Approval, error: SlackError
    ) -> str:
        """Return Slack's error code; raise the error again if it is to be retried."""
        if isinstance(error, SlackRefused):
            return error.error
        # An approval that is not over needs its card until it expires.
        if is_over(record) and self.has_timed_out(entry):
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
        place = await self.card_publisher.find_place(entry.approval)
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
        """Look up the card's channel and ts; note them on the entry."""
        place = await self.card_publisher.find_place(record.id)
        # A notification in a summary message has no card of its own. When its call gets
        # in doubt, people need buttons, so it gets a card.
        if place is not None and place.is_in_summary and needs_people(record):
            await self._forget(record.id, (place.channel, place.ts))
            place = None
        entry.is_new, entry.channel_of_card = place is None, record.channel
        if place is None and "" not in entry.unsent:
            entry.begun_in = await self.card_publisher.begun_in(record.id)
        entry.place = None if place is None else (place.channel, place.ts)
        entry.copies = {} if place is None else place.places
        return place

    def _needed(
        self, entry: QueueEntry, record: Approval, place: CardPlace | None
    ) -> Call | None:
        """Return the call that brings the card up to date; None when it is."""
        if place is None:
            is_due = bool(entry.lost_in) or has_card(record)
            return self._call_for_card(entry) if is_due else None
        if entry.may_wait:
            return None
        # Not `!=`: a publisher that was paused between its two reads may hold an older
        # record than the card shows, and must not overwrite the newer card.
        is_older = place.rev < record.rev
        is_evaluated_differently = place.decision_digest != policy_decision_digest(
            record, self.card_publisher.seal_key, sent=place.sent
        )
        if is_older or (place.rev == record.rev and is_evaluated_differently):
            return self._call_for_card(entry)
        return None

    def _next_call(
        self, entry: QueueEntry, record: Approval, place: CardPlace | None
    ) -> Call | None:
        """Return the call that brings card or copies up to date; None when they are.

        Copies follow the newest state of the card; who got one is then noted on it.
        """
        needed = self._needed(entry, record, place)
        entry.copy_due = None
        # A card that Slack refuses to change must not keep its copies as they were.
        is_first = needed is not None and not entry.refusals
        if place is not None and not (is_first and place.rev < record.rev):
            entry.copy_due = self.copies.next_call(entry, record, place)
        return entry.copy_due.call if entry.copy_due else needed

    async def _make(
        self,
        entry: QueueEntry,
        record: Approval,
        place: CardPlace | None,
        now_ms: int,
    ) -> CardPlace | None:
        """Make the call that `_next_call` returned; return the place as it is now."""
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
        if why in NOT_ABOUT_THE_CARD:
            logger.error("publisher.bot_refused error=%s", why)
            entry.card_at = self.clock() + BROKEN_S
        # Slack counts text by an unpublished rule, so our own budget may be wrong. On
        # the plain card a call can only be rejected, but it is not stuck without one.
        elif why in ABOUT_THE_BLOCKS and not entry.is_plain:
            logger.error("card.refused entry=%s why=%s", entry.key, why)
            entry.is_plain = True
        elif record.is_auto_approved and not needs_people(record):
            # Nobody waits for it, and the audit log records it.
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
        # A second card is posted only where people still have to act. Otherwise the old
        # one stays: two cards with different states are worse than one outdated card.
        if not needs_people(approval) or not (why in NEVER_UPDATED or has_other):
            return False
        # Forget the place before the new card is posted, or `register` would delete the
        # new one as a surplus copy. It compares the place: one that another
        # publisher registered meanwhile stays.
        logger.error("card.lost entry=%s why=%s", entry.key, why)
        await self._forget(approval.id, entry.place)
        entry.is_new, entry.place, entry.channel_of_card = True, None, approval.channel
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
        # The exponent is bounded: a card that is refused for hours would overflow the
        # float. 2**10 is far above the longest wait.
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(entry.refusals, 10))
        entry.card_at = self.clock() + wait_s
        trouble = CardTrouble(channel=first[0], why=first[1])
        await cards.keep_trouble(self.card_publisher.keys, approval.id, trouble)
        await queue_report(cards, self.card_publisher.keys, entry, approval, trouble)
        # After its first refusal the copies come first, and then it is tried once more.
        is_last = entry.refusals > 1 or not entry.copies
        if is_over(approval) and is_last:
            await self._done(entry, entry.wanted)
        else:
            # Before its events are acknowledged, which do not wait for the card.
            await cards.mark_outdated(self.card_publisher.keys, approval.id)

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
                self.failures.add(entry, event, found, record)
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
