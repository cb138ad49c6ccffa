"""Account for every approval of a run under kill -9, one by one.

Linearizability does not require that an approved call ever runs. So each approval is
listed by the result of its call, and those without an effect are named with their
reason. An approval without a reason is a loss.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from tests.linearizability.history import Operation, by_key


class Fate(StrEnum):
    """The result of an approval's call."""

    RAN = "ran once, and its end is recorded"
    RAN_IN_DOUBT = "ran once; its end was not recorded, so it is in doubt"
    ENDED_IN_DOUBT = "did not run; in doubt: its process or the store died as it began"
    SUPERSEDED = "did not run: superseded before anybody decided"
    LAPSED_ASKED_ANEW = "approved, did not run: lapsed, and people were asked again"
    LAPSED = "approved, did not run: lapsed, and nobody was asked again"
    UNDECIDED = "nobody decided"
    NOT_OVER = "approved, and not over"
    LOST = "WRONG: approved, over, and it did not run"
    TWICE = "WRONG: ran more than once"
    UNDECIDED_RAN = "WRONG: ran, and nobody decided"

    @property
    def is_explained(self) -> bool:
        """Return True if this may be: nothing that was confirmed is lost by it."""
        return self in _EXPLAINED


_EXPLAINED = frozenset({
    Fate.RAN, Fate.RAN_IN_DOUBT, Fate.ENDED_IN_DOUBT, Fate.SUPERSEDED,
    Fate.LAPSED_ASKED_ANEW,
})  # fmt: skip


_UNKNOWN: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Account:
    """One approval at the end of a run.

    Attributes:
        state: by the last reading; "" if it was never read.
        by: its decider, by that reading or by the reply to the click.
        is_confirmed: a person was informed that their click decided it.
        effects: how often its tool ran.
    """

    approval: str
    thread: str
    state: str
    by: str
    is_confirmed: bool
    effects: int
    fate: Fate

    def __str__(self) -> str:
        """Return it as one line."""
        told = "confirmed" if self.is_confirmed else "not confirmed"
        by = f"by {self.by}, {told}" if self.by else "undecided"
        return (
            f"{self.approval} of {self.thread}: {self.state or 'never read'}, {by}, "
            f"{self.effects} effects: {self.fate}"
        )


def reconciled(
    history: Iterable[Operation], threads: Mapping[str, str]
) -> list[Account]:
    """Return the result of each approval, in the order of the threads.

    Args:
        history: clicks, readings and effects.
        threads: by the id of their approval, oldest first.
    """
    every = by_key(history)
    newest = {thread: approval for approval, thread in threads.items()}
    # An effect without a known approval has no thread.
    ids = [*threads, *(one for one in every if one not in threads)]
    return [
        _account(
            one,
            threads.get(one, "no known thread"),
            every.get(one, []),
            is_newest=newest.get(threads.get(one, "")) == one,
        )
        for one in ids
    ]


def report(
    accounts: Sequence[Account], timelines: Mapping[str, str] = _UNKNOWN
) -> list[str]:
    """Return the lines to print: counts, then each call without an effect.

    Args:
        accounts: of all approvals.
        timelines: the events of an approval and around it, by its id.
    """
    counts = Counter(one.fate for one in accounts)
    lines = [f"{counts[fate]:6} {fate}" for fate in Fate if counts[fate]]
    per_thread = Counter(_runs_of_threads(accounts).values())
    lines.append(f"effects per thread: {dict(sorted(per_thread.items()))}")
    confirmed = [one for one in accounts if one.is_confirmed]
    lost = [one for one in confirmed if not one.fate.is_explained]
    lines.append(f"{len(confirmed)} confirmed to a person; without an explanation: "
                 f"{len(lost)}")  # fmt: skip
    for one in accounts:
        if not one.effects:
            lines.append(f"  {one}")
            # An undecided approval needs no explanation.
            if one.by and one.approval in timelines:
                lines.append(f"    {timelines[one.approval]}")
    return lines


def unexplained(accounts: Iterable[Account]) -> list[Account]:
    """Return the approvals whose end nothing explains."""
    return [one for one in accounts if not one.fate.is_explained]


def _runs_of_threads(accounts: Iterable[Account]) -> dict[str, int]:
    found = defaultdict[str, int](int)
    for one in accounts:
        found[one.thread] += one.effects
    return dict(found)


def _account(
    approval: str, thread: str, operations: Sequence[Operation], *, is_newest: bool
) -> Account:
    reads = [one for one in operations if one.name == "read"]
    last = max(reads, key=lambda one: one.returned, default=None)
    output = last.output if last and isinstance(last.output, tuple) else ("", "")
    state, read_by = map(str, output)
    told = [str(one.given[0]) for one in operations if one.output == "decided"]
    by = read_by or next(iter(told), "")
    effects = sum(one.name == "effect" for one in operations)
    fate = _fate(state, bool(by), effects, is_newest=is_newest)
    return Account(approval, thread, state, by, bool(told), effects, fate)


def _fate(state: str, is_decided: bool, effects: int, *, is_newest: bool) -> Fate:  # noqa: FBT001, PLR0911 - a table
    if effects > 1:
        return Fate.TWICE
    if effects and not is_decided:
        return Fate.UNDECIDED_RAN
    match state:
        case "executed" | "failed" if effects:
            return Fate.RAN
        case "in_doubt":
            return Fate.RAN_IN_DOUBT if effects else Fate.ENDED_IN_DOUBT
        case "authorized" | "executing":
            return Fate.NOT_OVER
        case "lapsed" | "withdrawn" if not effects:
            return Fate.LAPSED if is_newest else Fate.LAPSED_ASKED_ANEW
        case "superseded" if not is_decided:
            return Fate.SUPERSEDED
        case "pending" if not is_decided:
            return Fate.UNDECIDED
        case _:
            return Fate.LOST
