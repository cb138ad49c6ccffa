"""Priority queue of what has to be posted to Slack, in memory.

Events about one approval are one topic: its card is brought up to its newest state by
one call, however many events led there, and its history follows line by line. Events
about one thread of an agent are one topic too. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from twokey.bot.blocks import Message
from twokey.bot.cards.freeze_messages import FREEZE_EVENTS, scope_of
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Approval

NOTIFICATIONS_AT_ONCE = 5
"""How many of a channel wait to be posted before further ones are folded."""


class Urgency(IntEnum):
    """What comes first when not everything can."""

    NEW_CARD = 0
    NEEDS_PEOPLE = 1
    WORDS = 2
    NEWS = 3
    HISTORY = 4


class Call(NamedTuple):
    """A call of Slack's Web API, as far as its rate limit is concerned."""

    method: str
    channel: str


NEEDS_PEOPLE = frozenset(
    {
        EventName.APPROVAL_REMINDED,
        EventName.APPROVAL_ESCALATED,
        EventName.APPROVAL_UNSETTLED,
        EventName.ITEM_EDITED,
        EventName.ITEM_VOTED,
        EventName.ITEM_IN_DOUBT,
        EventName.ITEM_OBSERVED,
        EventName.ITEM_REPORTED,
        EventName.ITEM_REOPENED,
    }
)
"""Events that wait for people."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line for a channel, or for a thread in it.

    Attributes:
        message: the line; of an escalation it is made when it is its turn.
        seq: of the event that is done with it; "" for none.
        channel: id or name.
        thread_ts: the thread; None for the channel itself.
        urgency: how it matters.
        escalated: what the line says that others were called to.
        called: the channel that is told by this line of an escalation.
        asks: names of the roles that are asked by it to decide.
        report: what people know of a card when they have read the line.
    """

    message: Message
    seq: str
    channel: str
    thread_ts: str | None
    urgency: Urgency = Urgency.HISTORY
    asks: frozenset[str] = frozenset()
    escalated: Approval | None = None
    called: str = ""
    report: str = ""


@dataclass(slots=True)
class Topic:
    """What is to be said about one approval, in one thread, or of one stop.

    Attributes:
        key: approval id, agent and thread, or what was stopped.
        approval: its id; "" for none.
        is_unasked: the card is a notification, which asks nobody and comes last.
        summary_channel: where many notifications are told in one message; "" for none.
        events: read and not acknowledged, oldest first.
        notes: lines for the thread under the card, oldest first.
        wanted: counts what changed; the card is due while it differs from ``shown``.
        since: when it came up, by the queue's clock.
        not_before: when it may be tried again, by the same clock.
        card_at: when its card may be tried again; its lines need not wait for that.
        refusals: of the card, in a row.
        refused: where and why the card was refused first, while another channel is
            tried.
        is_busy: somebody works on it.
        failures: in a row.
        channel_of_card: where its card has to be posted, as far as it is known here.
        channel: where to post instead.
        is_plain: Slack refused the card as it should be.
        is_missed: the store holds that the card is missing or may be old.
        called: channels that were called, and why Slack refused it ("": it did not).
        is_new: the card is not posted yet, as far as it is known here.
        place: channel and ts of the card, as far as they are known here.
        asked: names of the roles that were mentioned on the card or under it.
    """

    key: str
    approval: str
    is_unasked: bool = False
    summary_channel: str = ""
    events: list[Event] = field(default_factory=list[Event])
    notes: list[Line] = field(default_factory=list[Line])
    place: tuple[str, str] | None = None
    asked: frozenset[str] = frozenset()
    wanted: int = 0
    shown: int = 0
    since: float = 0.0
    not_before: float = 0.0
    card_at: float = 0.0
    refusals: int = 0
    refused: tuple[str, str] | None = None
    is_busy: bool = False
    failures: int = 0
    channel_of_card: str = ""
    channel: str = ""
    is_plain: bool = False
    is_missed: bool = False
    called: dict[str, str] = field(default_factory=dict[str, str])
    is_new: bool = False

    @property
    def is_card_due(self) -> bool:
        """Return whether the card may be older than the record."""
        return bool(self.approval) and self.wanted != self.shown

    @property
    def due_at(self) -> float:
        """Return when there is something to do for it."""
        # Lines need not wait for a card that Slack refuses: `is_card_next` lets them
        # pass until `card_at`.
        is_card = self.is_card_due and not self.notes
        return max(self.not_before, self.card_at if is_card else 0.0)

    def is_card_next(self, now: float) -> bool:
        """Return whether its card comes before its lines."""
        return self.is_card_due and (self.card_at <= now or not self.notes)

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to say."""
        return not (self.events or self.notes or self.is_card_due)

    @property
    def urgency(self) -> Urgency:
        """Return how soon it matters."""
        if self.summary_channel:
            return Urgency.HISTORY
        if not self.approval:
            return Urgency.WORDS
        if not self.is_card_due:
            return self.notes[0].urgency if self.notes else Urgency.HISTORY
        needs_people = any(event.name in NEEDS_PEOPLE for event in self.events)
        if self.is_unasked:
            return Urgency.NEEDS_PEOPLE if needs_people else Urgency.HISTORY
        if self.is_new:
            return Urgency.NEW_CARD
        return Urgency.NEEDS_PEOPLE if needs_people else Urgency.NEWS


class OutboxQueue:
    """All topics of one shard, in the order in which they came up.

    Args:
        clock: seconds, never going backwards.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._topics: dict[str, Topic] = {}
        self._folded: dict[str, Topic] = {}

    def __len__(self) -> int:
        """Count the topics."""
        return len(self._topics)

    def unsaid(self) -> int:
        """Count what is read and not said, without the cards themselves."""
        return sum(len(topic.events) + len(topic.notes) for topic in self)

    def __iter__(self) -> Iterator[Topic]:
        """Go through the topics, oldest first."""
        return iter(self._topics.values())

    def add(self, event: Event) -> None:
        """Take up an event; news about a card makes it due again at once."""
        if event.name in NEEDS_PEOPLE:
            self._folded.pop(event.approval, None)  # it needs a card of its own
        fresh = self._folded.get(event.approval) or _topic(event)
        if fresh.key not in self._topics and self._is_crowded(event):
            fresh = Topic(key=f"notifications {event.channel}", approval="")
            fresh.summary_channel = event.channel
        topic = self._wanted(fresh)
        if topic.summary_channel:
            self._folded[event.approval] = topic
        # After a restart the event may come again although the card is posted; a known
        # place shows that it is no new card.
        if event.name is EventName.APPROVAL_OPENED and topic.place is None:
            topic.is_new, topic.channel_of_card = True, event.channel
        topic.events.append(event)

    def redraw(self, approval: str) -> None:
        """Make a card due again: what it says of its calls is so no longer."""
        self._wanted(Topic(approval, approval))

    def miss(self, approval: str) -> None:
        """Make a card due that is missing, or may be old, unless it is due already."""
        if approval not in self._topics:
            self._wanted(Topic(approval, approval, is_new=True, is_missed=True))

    def _wanted(self, fresh: Topic) -> Topic:
        """Return the topic that is on the queue, or put this one there; it is due."""
        topic = self._topics.get(fresh.key)
        if topic is None:
            topic = self._topics[fresh.key] = fresh
            topic.since = self._clock()
        # A counter and not a flag: what comes in while Slack answers must make the card
        # due again after that answer.
        topic.wanted += 1
        # News may end a wait for the rate limit, but not the backoff after a failure: a
        # busy approval would otherwise ask a Slack in trouble without a pause.
        if not topic.failures:
            topic.not_before = 0.0
        return topic

    def drop_done(self, topic: Topic) -> None:
        """Forget a topic about which nothing is left to say."""
        # A busy topic may get events while its task runs; dropping it would put a
        # second one with the same key on the queue, and both would post.
        if topic.is_done and not topic.is_busy:
            self._topics.pop(topic.key, None)
            if topic.summary_channel:
                for one in [one for one, at in self._folded.items() if at is topic]:
                    del self._folded[one]

    def _is_crowded(self, event: Event) -> bool:
        """Return whether a new notification has to share a message with waiting ones.

        Each takes a second or more to post, and they must not keep cards waiting.
        """
        if event.name is not EventName.APPROVAL_OPENED or not event.is_unasked:
            return False
        waiting = [
            topic
            for topic in self
            if topic.is_unasked
            and topic.place is None
            and topic.events
            and topic.events[0].name is EventName.APPROVAL_OPENED
            and topic.events[0].channel == event.channel
        ]
        return len(waiting) >= NOTIFICATIONS_AT_ONCE

    def waiting(self) -> list[Topic]:
        """Return the topics on which nobody works, most urgent first."""
        found = [topic for topic in self if not topic.is_busy]
        # `sorted` is stable, so among equals the oldest goes first. A card that is
        # refused again and again goes behind its equals, so that it does not take the
        # tokens of cards that would be accepted.
        return sorted(found, key=lambda topic: (topic.urgency, topic.refusals))


def _topic(event: Event) -> Topic:
    """Return what an event is about, with nothing to say yet."""
    if event.name in FREEZE_EVENTS:
        # Whatever card led there, it concerns everybody.
        return Topic(key="stop {} {}".format(*scope_of(event)), approval="")
    key = event.approval or f"{event.agent} {event.thread}"
    return Topic(key=key, approval=event.approval, is_unasked=event.is_unasked)
