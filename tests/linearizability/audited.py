"""The audit log of the approvals of a run, compared with people's replies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.linearizability.reconciliation import Account

_AUTHORIZED = "item.authorized"
_BEFORE_MS = 2000


class Moment(NamedTuple):
    """One entry of the log: an event of an approval, by the store's clock."""

    approval: str
    event: str
    at_ms: int


class Death(NamedTuple):
    """Which kind of process was killed, by the same clock."""

    kind: str
    at_ms: int


def contradictions(accounts: Iterable[Account], moments: Iterable[Moment]) -> list[str]:
    """Return acknowledged decisions that are not in the log exactly once."""
    counts = Counter(one.approval for one in moments if one.event == _AUTHORIZED)
    found = [
        f"{one.approval} of {one.thread}: confirmed, and not in the audit log"
        for one in accounts
        if one.is_confirmed and not counts[one.approval]
    ]
    return found + [
        f"{approval}: decided {count} times, says the audit log"
        for approval, count in counts.items()
        if count > 1
    ]


def timelines(moments: Iterable[Moment], deaths: Sequence[Death]) -> Mapping[str, str]:
    """Return for each approval one line: its events and the kills between them."""
    found = defaultdict[str, list[tuple[int, str]]](list)
    for one in moments:
        if one.approval:
            found[one.approval].append((one.at_ms, one.event.partition(".")[2]))
    killed = [(one.at_ms, f"{one.kind} killed") for one in deaths]
    return {approval: _line(events, killed) for approval, events in found.items()}


def _line(events: Sequence[tuple[int, str]], killed: Iterable[tuple[int, str]]) -> str:
    (first, _), (last, _) = min(events), max(events)
    # What died just before took the answer of the submission with it.
    near = (one for one in killed if first - _BEFORE_MS <= one[0] <= last)
    every = sorted([*events, *near])
    return ", ".join(f"{what} {(at - first) / 1000:.1f} s" for at, what in every)
