"""Decide whether the history of one object is linearizable.

The search is that of Wing and Gong, with the memory of Lowe. It takes operations one
after the other, each of them only when no other had returned before it was called, and
checks whether the model of the object allows its output. A set of operations that was
taken before and led to the same state is not tried again.

An open operation may be taken at any place after its call, with any output, or never.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tests.linearizability.history import Operation, by_key

State = TypeVar("State", bound=Hashable)


class Model(Protocol[State]):
    """The promises of an object to a single user."""

    def start(self) -> State:
        """Return the state before the first operation."""
        ...

    def step(self, state: State, operation: Operation) -> Iterable[State]:
        """Return the states that may follow; none if it cannot have returned this."""
        ...

    def is_read(self, operation: Operation) -> bool:
        """Return True if it changes no state, in any state."""
        ...


@dataclass(frozen=True)
class Violation:
    """The operations of an object without an order.

    Attributes:
        explained: the longest part that has an order, in that order.
        left: the operations that do not fit after it.
    """

    key: str
    explained: tuple[Operation, ...]
    left: tuple[Operation, ...]

    def __str__(self) -> str:
        """Return it as people read it."""
        lines = [f"{self.key} is not linearizable. In order:"]
        lines += [f"  {_told(one)}" for one in self.explained]
        lines += ["Does not follow:", *(f"  {_told(one)}" for one in self.left)]
        return "\n".join(lines)


def violations(history: Iterable[Operation], model: Model[State]) -> list[Violation]:
    """Return the objects of a history that are not linearizable."""
    found = (violation(each, model) for each in by_key(history).values())
    return [one for one in found if one is not None]


def violation(history: Sequence[Operation], model: Model[State]) -> Violation | None:
    """Return why the history of one object is not linearizable, or None if it is."""
    search = _Search(history, model)
    return None if search.succeeds() else search.violation()


class _Search(Generic[State]):
    """One search, without recursion: histories are longer than Python's stack.

    Sets of operations are bits of a number, by their places in the order of calls.
    """

    def __init__(self, history: Sequence[Operation], model: Model[State]) -> None:
        self._all = sorted(history, key=lambda one: one.called)
        self._model = model
        self._must = sum(1 << at for at, one in enumerate(self._all) if not one.is_open)
        self._best: tuple[int, ...] = ()

    def succeeds(self) -> bool:
        """Return whether there is an order of all operations that returned."""
        start = self._model.start()
        seen: set[tuple[int, State]] = {(0, start)}
        path: list[int] = []
        stack: list[Iterator[tuple[int, int, State]]] = [self._nexts(0, start)]
        if not self._must:
            return True
        while stack:
            for place, taken, state in stack[-1]:
                if (taken, state) in seen:
                    continue
                seen.add((taken, state))
                path.append(place)
                if taken & self._must == self._must:
                    return True
                if len(path) > len(self._best):
                    self._best = tuple(path)
                stack.append(self._nexts(taken, state))
                break
            else:
                stack.pop()
                if path:
                    path.pop()
        return False

    def violation(self) -> Violation:
        """Return how far the search got."""
        taken = frozenset(self._best)
        left = [
            one
            for at, one in enumerate(self._all)
            if at not in taken and not one.is_open
        ]
        ends = min((one.returned for one in left), default=0)
        return Violation(
            self._all[0].key,
            tuple(self._all[at] for at in self._best),
            tuple(one for one in left if one.called <= ends),
        )

    def _nexts(self, taken: int, state: State) -> Iterator[tuple[int, int, State]]:
        """Yield each operation that may come next, and its next states."""
        able: list[tuple[int, State]] = []
        for place in self._minimal(taken):
            one = self._all[place]
            for after in self._model.step(state, one):
                # If there is an order with it later, there is one with it now.
                if not one.is_open and self._model.is_read(one):
                    yield place, taken | 1 << place, after
                    return
                # An open operation that changes nothing need not be taken.
                if after != state or not one.is_open:
                    able.append((place, after))
        for place, after in able:
            yield place, taken | 1 << place, after

    def _minimal(self, taken: int) -> list[int]:
        """Return the places of those that none of the others had returned before."""
        # The lowest place that is not taken: all before it need no look.
        first = (~taken & (taken + 1)).bit_length() - 1
        found: list[int] = []
        ends: int | None = None
        for place in range(first, len(self._all)):
            one = self._all[place]
            if ends is not None and one.called > ends:
                break
            if not taken >> place & 1:
                found.append(place)
                ends = one.returned if ends is None else min(ends, one.returned)
        return found


def _told(one: Operation) -> str:
    until = "open" if one.is_open else f"{one.returned / 1e6:.3f}"
    given = ", ".join(map(repr, one.given))
    return f"[{one.called / 1e6:.3f}, {until}] {one.name}({given}) = {one.output!r}"
