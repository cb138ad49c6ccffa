"""Fold an audit log into the precedents of each effect, as the store keeps them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from keyturn.gateway.approvals.events import EventName, state_after
from keyturn.gateway.approvals.precedents import (
    DAY_MS,
    KINDS,
    MOST_KEPT,
    PrecedentKind,
)
from keyturn.gateway.protocol.states import ItemState


class LastState(NamedTuple):
    """The state that a call reached by the audit log, and when."""

    state: ItemState
    at_ms: int


class PrecedentFold:
    """The last states of calls with each effect, by the events so far.

    An audit log holds no arguments: who reads it says which effect a call has.
    """

    def __init__(self) -> None:
        self._effects: dict[str, str] = {}
        self._found: dict[str, dict[str, LastState]] = defaultdict(dict)
        self._auto_runs = 0

    def opened(self, item: str, effect: str) -> None:
        """Take in a call, or what an edit made of it; no effect is none to repeat."""
        known = self._found[self._effects.get(item, "")].pop(item, None)
        self._effects[item] = effect
        if known is not None:
            self._found[effect][item] = known

    def ran(self, effect: str, *, at_ms: int) -> None:
        """Take in a call of tier ``auto``, which has no item."""
        self._auto_runs += 1
        known = LastState(ItemState.AUTHORIZED, at_ms)
        self._found[effect][f"auto_{self._auto_runs}"] = known

    def record(
        self, name: EventName, item: str, *, at_ms: int, reason: str = ""
    ) -> None:
        """Take in an event about a call that was opened."""
        state, effect = state_after(name, reason), self._effects.get(item)
        if effect is None or state is None:
            return
        if state in KINDS:
            self._found[effect][item] = LastState(state, at_ms)
        else:
            self._found[effect].pop(item, None)

    def precedents(self, effect: str) -> Mapping[str, LastState]:
        """Return the last states of the calls with an effect, by call."""
        return self._found[effect]

    def count(self, effect: str, kind: PrecedentKind, *, now_ms: int) -> int:
        """Return how many of a kind there were in the last 24 hours."""
        since_ms = now_ms - DAY_MS
        found = self._found[effect].values()
        count = sum(KINDS[one.state] is kind and one.at_ms > since_ms for one in found)
        return min(MOST_KEPT, count)
