"""Keep a card up to date; fall back when Slack refuses it.

A card that people wait for is tried until they need it no longer: in its channel, then
in the fallback channel, after a while again. Which cards are missing is kept in the
store, so a restart goes on with them. Meanwhile the Home tab lists what waits, and
whoever asked is told, once, in words that are true for the state of the calls.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from twokey.bot.cards.mentions import mentions_for
from twokey.bot.cards.outcome import corrupt_record
from twokey.bot.cards.undelivered import is_over, needs_people, undelivered
from twokey.bot.delivery.card_publisher import CardPublisher, policy_decision_digest
from twokey.bot.delivery.lines import event_lines, mention_newly_needed
from twokey.bot.delivery.outbox_queue import Call, Line, Topic
from twokey.bot.limits import POST, UPDATE
from twokey.bot.web import NEVER_UPDATED, STILL_THERE, TOKEN_ERRORS, SlackRefused
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import CorruptRecord
from twokey.gateway.failures import log_failure
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.cards import CardPlace, CardTrouble
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.outbox import Outbox

logger = logging.getLogger(__name__)

BROKEN_S = 60.0
"""How soon the bot tries again when Slack refuses the bot as a whole."""

_LONGEST_WAIT_S = 30.0
_SECONDS = 0.5

NOT_ABOUT_THE_CARD = TOKEN_ERRORS | {
    "access_denied",
    "missing_scope",
    "no_permission",
    "not_allowed_token_type",
}
"""Refusals that concern the bot as a whole: it goes on when an operator has helped."""

_ABOUT_THE_BLOCKS = frozenset(
    {
        "block_mismatch",
        "invalid_blocks",
        "invalid_blocks_format",
        "metadata_too_large",
        "msg_blocks_too_long",
        "msg_too_long",
    }
)


@dataclass(frozen=True, slots=True)
class CardUpdater:
    """How cards get into Slack.

    Attributes:
        card_publisher: where they go.
        outbox: where events are acknowledged.
        keys: of the tenant's shard.
        tenant: whose they are.
        read: returns an approval as it is to be shown, and the time; None for an
            unknown id.
        posted: called once for each card that was posted.
        clock: seconds, never going backwards.
        fallback_channel: takes a card that its own channel refuses; "" for none.
    """

    card_publisher: CardPublisher
    outbox: Outbox
    keys: Keys
    tenant: str
    read: Callable[[str], Awaitable[Loaded | None]]
    posted: Callable[[Approval], None]
    clock: Callable[[], float]
    fallback_channel: str = ""

    def next_call(self, topic: Topic) -> Call | None:
        """Return the call that a card seems to need; None when a look comes first."""
        if not topic.is_new:
            return Call(UPDATE, "")
        channel = topic.channel or topic.channel_of_card
        return Call(POST, channel) if channel else None

    async def show(self, topic: Topic, given: Call | None) -> bool:
        """Bring the card of a topic up to date; return whether the call was made.

        Args:
            topic: what it is about.
            given: the call that may be made; for any other the scheduler is asked.
        """
        # What comes in meanwhile is about a newer record than the one that is read now.
        wanted, events = topic.wanted, list(topic.events)
        try:
            loaded = await self.read(topic.approval)
        except CorruptRecord as error:
            await self._give_up(topic, error)
            return False
        if loaded is None:
            await self._done(topic, wanted)
            await self.acknowledge(topic, events)
            return False
        record, now_ms = loaded.approval, loaded.now_ms
        place = await self._place(topic, record)
        # An edit whose event is still to come mentions people itself.
        is_told = topic.is_missed or any(e.version == record.version for e in events)
        is_known = place is None or place.rev == record.rev or is_told
        needed = self._needed(topic, record, place)
        # A token was taken for another call than the one that is needed: the topic did
        # not know yet that the card is posted, or that it is gone. `given` goes back to
        # the rate limit, and the next round takes the right one.
        if needed not in {None, given}:
            return False  # the scheduler takes what is needed from its limit
        if needed is not None:
            try:
                place = await self._post_or_update(topic, record, place, now_ms)
            except SlackRefused as error:
                why = error.error
                if await self._refused(topic, record, why):
                    await self._take_notes(topic, record, events)
                return True
            # Another publisher posted a copy first and that one counts. Ours was taken
            # down, and the usable one may show an older rev.
            if self._needed(topic, record, place) is not None:
                return True  # another copy is the usable one
        elif topic.is_missed:
            await self.card_publisher.cards.drop(self.keys, self.tenant, record.id)
        # Not `topic.wanted`: an event that arrived while Slack was answering raised it,
        # and the card has to be drawn once more for that one.
        topic.shown, topic.refusals = wanted, 0
        await self._take_notes(topic, record, events)
        # The mention comes after the history of the edit itself. If the event is still
        # in the outbox, it mentions the same people when it comes; doing it now would
        # notify them twice.
        if is_known:
            _mention_needed(topic, record, place, now_ms)
        return needed is not None

    async def _done(self, topic: Topic, wanted: int) -> None:
        """Leave a card as it is, or missing: nothing on it can be decided."""
        topic.shown = wanted
        await self.card_publisher.cards.drop(self.keys, self.tenant, topic.approval)

    async def _give_up(self, topic: Topic, error: CorruptRecord) -> None:
        """Say under the card that nothing on it counts any more."""
        log_failure(logger, error, "publisher.corrupt_record")
        await self._done(topic, topic.wanted)
        place = await self.card_publisher.find_place(topic.approval)
        if place is not None:
            told = corrupt_record(topic.approval)
            # A copy, since the loop removes from the list that it walks.
            for event in list(topic.events):
                if event.name is EventName.RECORD_QUARANTINED:
                    line = Line(told, event.seq, place.channel, place.ts)
                    topic.notes.append(line)
                    topic.events.remove(event)
        await self.acknowledge(topic, list(topic.events))

    async def _place(self, topic: Topic, record: Approval) -> CardPlace | None:
        """Look up where the card stands, and keep on the topic what it needs."""
        place = await self.card_publisher.find_place(record.id)
        # A notification that was told in a summary has no card of its own. When its
        # call comes into doubt, people need buttons, so the summary is no longer its
        # place and a card is posted.
        if place is not None and place.is_folded and needs_people(record):
            at = (place.channel, place.ts)
            await self.card_publisher.cards.lose(self.keys, self.tenant, record.id, at)
            place = None
        topic.is_new, topic.channel_of_card = place is None, record.channel
        topic.place = None if place is None else (place.channel, place.ts)
        return place

    def _needed(
        self, topic: Topic, record: Approval, place: CardPlace | None
    ) -> Call | None:
        """Return the call that brings the card up to date; None when it is."""
        if place is None:
            return self.next_call(topic)
        # Not `!=`: a publisher that was paused between its two reads may hold an older
        # record than the card shows. It must not draw the card back in time.
        is_older = place.rev < record.rev
        is_judged_otherwise = place.judged != policy_decision_digest(
            record, self.card_publisher.seal_key
        )
        if is_older or (place.rev == record.rev and is_judged_otherwise):
            return self.next_call(topic)
        return None

    async def _post_or_update(
        self,
        topic: Topic,
        record: Approval,
        place: CardPlace | None,
        now_ms: int,
    ) -> CardPlace:
        """Post the card, or bring it up to date; return its usable copy."""
        is_plain = topic.is_plain
        if place is not None:
            return await self.card_publisher.update_card(
                record, place, now_ms=now_ms, is_plain=is_plain
            )
        channel = topic.channel or record.channel
        place = await self.card_publisher.post_card(
            record, channel=channel, now_ms=now_ms, is_plain=is_plain
        )
        topic.is_new, topic.place = False, (place.channel, place.ts)
        # The caller looks up the reviewers in advance. Nobody reviews a notification,
        # and its lookups would use up Slack's 20 a minute for user groups.
        if needs_people(record) or not record.is_unasked:
            self.posted(record)
        return place if is_plain else await self._record_mentions(place, record)

    async def _record_mentions(self, place: CardPlace, approval: Approval) -> CardPlace:
        """Remember whom the posted card mentions."""
        # Kept after Slack took the card: a crash before this line mentions people
        # twice, the other order would mention nobody.
        roles = mentions_for(approval).roles
        await self.card_publisher.cards.asked(self.keys, approval.id, roles)
        return place.with_(asked=place.asked.union(roles))

    async def _refused(self, topic: Topic, record: Approval, why: str) -> bool:
        """Decide how to go on; return whether the lines do so without the card."""
        # No fallback channel for these: the bot as a whole is refused, and the card is
        # in order.
        if why in NOT_ABOUT_THE_CARD:
            logger.error("publisher.bot_refused error=%s", why)
            topic.card_at = self.clock() + BROKEN_S
        # Slack counts text by an unpublished rule, so our own budget may be wrong. The
        # plain card can only be rejected, but the call is not stuck without a card.
        elif why in _ABOUT_THE_BLOCKS and not topic.is_plain:
            logger.error("card.refused topic=%s why=%s", topic.key, why)
            topic.is_plain = True
        elif record.is_unasked and not needs_people(record):
            # Nobody waits for it, and the audit log has it.
            logger.error("notification.undeliverable topic=%s why=%s", topic.key, why)
            topic.shown = topic.wanted
            await self.acknowledge(topic, list(topic.events))
        elif not await self._post_elsewhere(topic, record, why):
            await self._retry_later(topic, record, why)
            return True
        return False

    async def _post_elsewhere(self, topic: Topic, approval: Approval, why: str) -> bool:
        """Let the card be posted elsewhere or anew; False when there is no way."""
        if topic.place is None:
            # `topic.channel` too: the fallback channel may have refused it as well, and
            # the two would be tried in turns without end.
            if self.fallback_channel in {"", topic.channel, approval.channel}:
                return False
            logger.error("card.diverted topic=%s why=%s", topic.key, why)
            topic.refused = (approval.channel, why)
            topic.channel = self.fallback_channel
            return True
        has_other = self.fallback_channel not in {"", topic.place[0]}
        # A second card is posted only where people still have to act. Otherwise the old
        # one stays: two cards with different states are worse than one that is late.
        if not needs_people(approval) or not (why in NEVER_UPDATED or has_other):
            return False
        # Forget the place before the new card is posted, or `register` would take the
        # new one for a surplus copy. `lose` compares the place: one that another
        # publisher registered meanwhile stays.
        logger.error("card.lost topic=%s why=%s", topic.key, why)
        await self.card_publisher.cards.lose(
            self.keys, self.tenant, approval.id, topic.place
        )
        topic.is_new, topic.place, topic.channel_of_card = True, None, approval.channel
        return True

    async def _retry_later(self, topic: Topic, approval: Approval, why: str) -> None:
        """Try again later; tell whoever asked, and let the Home tab tell the others."""
        cards, place = self.card_publisher.cards, topic.place
        # The first refusal is an error for the operator; the retries that follow every
        # half minute would fill the log with the same line.
        level = logging.INFO if topic.refusals else logging.ERROR
        logger.log(level, "card.undeliverable topic=%s why=%s", topic.key, why)
        channel = place[0] if place else approval.channel
        # People are told of the channel that the policy names, not of the fallback that
        # was tried after it.
        first = topic.refused or (channel, why)
        topic.refused, topic.channel = None, ""
        topic.refusals += 1
        # The exponent is bounded, or a card that is refused for hours would overflow
        # the float; 2**10 is far above the longest wait.
        wait_s = min(_LONGEST_WAIT_S, _SECONDS * 2.0 ** min(topic.refusals, 10))
        topic.card_at = self.clock() + wait_s
        trouble = CardTrouble(channel=first[0], why=first[1])
        await cards.hinder(self.keys, approval.id, trouble)
        await self._report(topic, approval, trouble)
        if is_over(approval):
            await self._done(topic, topic.wanted)
        elif place is not None:
            await cards.miss(self.keys, self.tenant, approval.id)

    async def _report(
        self, topic: Topic, approval: Approval, trouble: CardTrouble
    ) -> None:
        """Tell whoever can be told that the card does not show what is so; once."""
        what = "over" if is_over(approval) else "waiting"
        if what == "waiting" and not needs_people(approval):
            return  # it is approved, and what comes of it is told at its end
        # The store only knows of a report when Slack took it. One that still waits in
        # memory must not be queued again by the next refusal.
        if any(line.report == what for line in topic.notes):
            return
        if await self.card_publisher.cards.was_told(self.keys, approval.id, what):
            return
        channel, thread_ts = _whom_to_tell(topic, approval, trouble.why)
        if channel:
            message = undelivered(
                approval,
                channel=trouble.channel,
                why=trouble.why,
                is_posted=topic.place is not None,
            )
            line = Line(message, "", channel, thread_ts, report=what)
            topic.notes.append(line)

    async def _take_notes(
        self, topic: Topic, record: Approval, events: Sequence[Event]
    ) -> None:
        """Turn events of a topic into lines of history; those without one are done."""
        silent: list[Event] = []
        for event in events:
            # An event leaves `topic.events` as soon as it has a line, but is
            # acknowledged only when Slack took the line (`Line.seq`). A crash in
            # between reads it again.
            found = event_lines(event, record, topic.place)
            if found:
                topic.notes += found
                topic.events.remove(event)
            else:
                silent.append(event)
        await self.acknowledge(topic, silent)

    async def acknowledge(self, topic: Topic, events: list[Event]) -> None:
        """Be done with events of a topic."""
        # First the store, then memory: if the store is away, the events stay on the
        # topic and the whole step is tried again.
        await self.outbox.done(*(event.seq for event in events))
        for event in events:
            topic.events.remove(event)


def _mention_needed(
    topic: Topic, record: Approval, place: CardPlace | None, now_ms: int
) -> None:
    if place is not None and not record.is_unasked:
        topic.asked |= place.asked
        # Past the deadline nobody can decide, and a mention would call people for
        # nothing.
        if now_ms < record.expires_at_ms:
            mention_newly_needed(topic, record)


def _whom_to_tell(topic: Topic, approval: Approval, why: str) -> tuple[str, str | None]:
    """Return where to tell that a card is lost: under it, or to whoever asked."""
    if topic.place is not None and why in STILL_THERE:
        return topic.place
    if approval.origin is not None:
        return approval.origin.channel, approval.origin.thread_ts
    return (approval.requester.user if approval.requester else ""), None
