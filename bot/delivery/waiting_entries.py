"""Keep the entries of a queue that wait, so that few of them have to be looked at.

An entry stands in one of three places: among those to look at, the most urgent one
first; under the time before which there is nothing to do about it; or under the call
that it needs, while a rate limit does not allow that. Of all that wait for the same
call only the most urgent one is looked at, however many they are.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from twokey.bot.delivery.queue_entry import Call, QueueEntry, Rank

_OUTDATED = 64
"""How many outdated places a heap may have in any case."""


class LimitedCall(NamedTuple):
    """A call, and how many tokens of its rate limit it leaves to others."""

    call: Call
    keep: int


class _Known(NamedTuple):
    """What is known of an entry that waits.

    Attributes:
        rank: by which it stands among others.
        ticket: of its newest place.
        is_to_look_at: it stands among those to look at.
        first_for: it stands there as the first of those that wait for this call.
    """

    rank: Rank
    ticket: int
    is_to_look_at: bool = False
    first_for: LimitedCall | None = None


class _Places:
    """A heap of places; one is outdated when its entry has a newer one, or none.

    Args:
        known: the entries that wait, by key.
    """

    def __init__(self, known: dict[str, _Known]) -> None:
        self._known = known
        self._heap: list[tuple[tuple[float, ...], int, QueueEntry]] = []

    def push(self, order: tuple[float, ...], ticket: int, entry: QueueEntry) -> None:
        """Add a place; the lowest order comes first."""
        # An entry to which much happens leaves a place behind each time.
        if len(self._heap) > 2 * len(self._known) + _OUTDATED:
            self._heap = [one for one in self._heap if self._is_newest(*one[1:])]
            heapify(self._heap)
        heappush(self._heap, (order, ticket, entry))

    def first(self) -> tuple[tuple[float, ...], QueueEntry] | None:
        """Return the lowest order and its entry; None when nothing stands here."""
        while self._heap and not self._is_newest(*self._heap[0][1:]):
            heappop(self._heap)
        return (self._heap[0][0], self._heap[0][2]) if self._heap else None

    def _is_newest(self, ticket: int, entry: QueueEntry) -> bool:
        known = self._known.get(entry.key)
        return known is not None and known.ticket == ticket


class WaitingEntries:
    """The entries that no task works on.

    Whoever changes an entry says so by `put` or `look_again`: what was set aside is not
    looked at before its time.
    """

    def __init__(self) -> None:
        self._tickets = count(1)
        self._known: dict[str, _Known] = {}
        self._to_look_at = _Places(self._known)
        self._timed = _Places(self._known)
        self._limited: dict[LimitedCall, _Places] = {}
        self._firsts: dict[LimitedCall, str] = {}

    def __contains__(self, key: str) -> bool:
        """Return whether the entry with this key waits."""
        return key in self._known

    def put(self, entry: QueueEntry) -> None:
        """Let an entry wait among those to look at, by its rank of now."""
        known, rank = self._known.get(entry.key), entry.rank
        if known is None or not known.is_to_look_at or known.rank != rank:
            self._look_at(entry, rank)

    def look_again(self, entry: QueueEntry) -> None:
        """Look at an entry that may be set aside, and whose rank has not changed."""
        known = self._known.get(entry.key)
        if known is not None and not known.is_to_look_at:
            self._look_at(entry, known.rank)

    def begin(self, now: float) -> None:
        """Look again at what is due, and at the first one that waits for each call."""
        while (due := self._timed.first()) and due[0][0] <= now:
            self.look_again(due[1])
        for limited in [*self._limited]:
            first = self._known.get(self._firsts.get(limited, ""))
            if first is None or first.first_for != limited:
                self.look_at_next(limited)

    def next_at(self) -> float | None:
        """Return the earliest time under which an entry stands; None for none."""
        first = self._timed.first()
        return first[0][0] if first else None

    def most_urgent(self) -> QueueEntry | None:
        """Return the most urgent one of those to look at; None for none."""
        first = self._to_look_at.first()
        return first[1] if first else None

    def take(self, entry: QueueEntry) -> LimitedCall | None:
        """Let an entry wait no longer; return the call for which it was the first."""
        known = self._known.pop(entry.key, None)
        return known.first_for if known else None

    def set_aside(self, entry: QueueEntry, until: float) -> None:
        """Let an entry that was taken wait until a time."""
        known = self._known[entry.key] = _Known(entry.rank, next(self._tickets))
        self._timed.push((until,), known.ticket, entry)

    def set_aside_for(
        self, limited: LimitedCall, entry: QueueEntry, change_at: float
    ) -> None:
        """Let an entry that was taken wait until its call is allowed.

        Args:
            limited: the call.
            entry: needs it.
            change_at: when it may need another one; 0.0 for never.
        """
        known = self._known[entry.key] = _Known(entry.rank, next(self._tickets))
        places = self._limited.setdefault(limited, _Places(self._known))
        places.push(known.rank, known.ticket, entry)
        if change_at:
            self._timed.push((change_at,), known.ticket, entry)

    def look_at_next(self, limited: LimitedCall) -> None:
        """Look at the most urgent one of those that wait for a call."""
        places = self._limited.get(limited)
        if places is not None and (first := places.first()):
            entry = first[1]
            self._look_at(entry, self._known[entry.key].rank, limited)
            self._firsts[limited] = entry.key
        else:
            self._limited.pop(limited, None)
            self._firsts.pop(limited, None)

    def _look_at(
        self, entry: QueueEntry, rank: Rank, first_for: LimitedCall | None = None
    ) -> None:
        ticket = next(self._tickets)
        self._known[entry.key] = _Known(
            rank, ticket, is_to_look_at=True, first_for=first_for
        )
        self._to_look_at.push(rank, ticket, entry)
