"""Keep what is still to be said in Slack, and say what comes first.

Events about one approval are one topic: its card is brought up to its newest state by
one call, however many events led there, and its history follows line by line. Events
about one thread of an agent are one topic too. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from bot.cards.message import Message
from bot.cards.stops import STOPS, scope_of
from gateway.approvals.events import Event, EventName

NOTICES_AT_ONCE = 5
"""How many notices of a channel wait to be posted before further ones are folded."""


class Urgency(IntEnum):
    """What comes first when not everything can."""

    NEW_CARD = 0
    WORDS = 1
    NEEDS_PEOPLE = 2
    NEWS = 3
    HISTORY = 4


_NEEDS_PEOPLE = {
    EventName.APPROVAL_REMINDED,
    EventName.APPROVAL_ESCALATED,
    EventName.ITEM_EDITED,
    EventName.ITEM_VOTED,
    EventName.ITEM_IN_DOUBT,
    EventName.ITEM_OBSERVED,
    EventName.ITEM_REPORTED,
    EventName.ITEM_REOPENED,
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line, the event it is about ("" for none), its thread and how it matters."""

    message: Message
    seq: str
    channel: str
    thread_ts: str | None
    urgency: Urgency = Urgency.HISTORY


@dataclass(slots=True)
class Topic:
    """What is to be said about one approval, in one thread, or of one stop.

    Attributes:
        key: approval id, agent and thread, or what was stopped.
        approval: its id; "" for none.
        notice: id of a notice; "" for none.
        rest: channel of the notices that are told in one message; "" for none.
        events: read and not acknowledged, oldest first.
        notes: lines for the thread under the card, oldest first.
        wanted: counts what changed; the card is due while it differs from ``shown``.
        not_before: when it may be tried again, by the board's clock.
        is_busy: somebody works on it.
        failures: in a row.
        channel: where to post instead of where the approval says.
        is_plain: Slack refused the card as it should be.
        is_lost: the card can no longer be posted or changed.
        place: channel and ts of the card, as far as they are known here.
    """

    key: str
    approval: str
    notice: str = ""
    rest: str = ""
    events: list[Event] = field(default_factory=list[Event])
    notes: list[Line] = field(default_factory=list[Line])
    place: tuple[str, str] | None = None
    wanted: int = 0
    shown: int = 0
    not_before: float = 0.0
    is_busy: bool = False
    failures: int = 0
    channel: str = ""
    is_plain: bool = False
    is_lost: bool = False

    @property
    def is_card_due(self) -> bool:
        """Say whether the card may be older than the record."""
        return bool(self.approval or self.notice) and self.wanted != self.shown

    @property
    def is_done(self) -> bool:
        """Say whether nothing is left to say."""
        return not (self.events or self.notes or self.is_card_due)

    @property
    def urgency(self) -> Urgency:
        """Return how soon it matters."""
        if self.notice or self.rest:
            return Urgency.HISTORY
        if not self.approval:
            return Urgency.WORDS
        if not self.is_card_due:
            return self.notes[0].urgency if self.notes else Urgency.HISTORY
        names = {event.name for event in self.events}
        if EventName.APPROVAL_OPENED in names and self.place is None:
            return Urgency.NEW_CARD
        return Urgency.NEEDS_PEOPLE if names & _NEEDS_PEOPLE else Urgency.NEWS


class Board:
    """All topics of one shard, in the order in which they came up."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._folded: dict[str, Topic] = {}

    def __len__(self) -> int:
        """Count the topics."""
        return len(self._topics)

    def __iter__(self) -> Iterator[Topic]:
        """Go through the topics, oldest first."""
        return iter(self._topics.values())

    def add(self, event: Event) -> None:
        """Take up an event; news about a card makes it due again at once."""
        fresh = self._folded.get(event.notice) or _topic(event)
        if fresh.key not in self._topics and self._is_crowded(event):
            fresh = Topic(key=f"notices {event.channel}", approval="")
            fresh.rest = event.channel
        topic = self._topics.setdefault(fresh.key, fresh)
        if topic.rest:
            self._folded[event.notice] = topic
        topic.events.append(event)
        topic.wanted += 1
        if not topic.failures:
            topic.not_before = 0.0

    def redraw(self, approval: str) -> None:
        """Make a card due again: what it says of its calls is so no longer."""
        topic = self._topics.setdefault(approval, Topic(approval, approval))
        topic.wanted += 1
        if not topic.failures:
            topic.not_before = 0.0

    def drop_done(self, topic: Topic) -> None:
        """Forget a topic about which nothing is left to say."""
        if topic.is_done and not topic.is_busy:
            self._topics.pop(topic.key, None)
            if topic.rest:
                for notice in [n for n, at in self._folded.items() if at is topic]:
                    del self._folded[notice]

    def _is_crowded(self, event: Event) -> bool:
        """Say whether a new notice has to share a message with others that wait.

        Each takes a second or more to post, and they must not keep cards waiting.
        """
        if event.name is not EventName.CALL_RAN or not event.notice:
            return False
        waiting = [
            topic
            for topic in self
            if topic.notice
            and topic.place is None
            and topic.events
            and topic.events[0].name is EventName.CALL_RAN
            and topic.events[0].channel == event.channel
        ]
        return len(waiting) >= NOTICES_AT_ONCE

    def most_urgent(self, now: float) -> Topic | None:
        """Return what to do next; None when everything waits or is being done."""
        ready = (t for t in self if not t.is_busy and t.not_before <= now)
        return min(ready, key=lambda topic: topic.urgency, default=None)

    def next_at(self) -> float | None:
        """Return when the first waiting topic may be tried; None for none."""
        waiting = (topic.not_before for topic in self if not topic.is_busy)
        return min(waiting, default=None)


def _topic(event: Event) -> Topic:
    """Return what an event is about, with nothing to say yet."""
    if event.name in STOPS:
        # Whatever card led there, it concerns everybody.
        return Topic(key="stop {} {}".format(*scope_of(event)), approval="")
    if event.notice:
        return Topic(key=event.notice, approval="", notice=event.notice)
    key = event.approval or f"{event.agent} {event.thread}"
    return Topic(key=key, approval=event.approval)
