"""Replay past calls against a new policy, and compare the decisions.

An audit export is JSON lines. A row is an event
(`keyturn.gateway.approvals.events.Event`). If its ``call`` has the arguments, every
rule is checked as at that time: totals of windows, requests, failures, rejections and
precedents are computed from the rows. Without arguments only the listed tier is
compared.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import ConfigDict, Field

from keyturn.gateway.approvals.events import (
    BATCH_MEMBER,
    BY_POLICY,
    EventName,
    state_after,
)
from keyturn.gateway.approvals.precedents import DAY_MS, KINDS, MOST_KEPT, PrecedentKind
from keyturn.gateway.approvals.quorum import tally
from keyturn.gateway.approvals.requirement import Requirement, Vote
from keyturn.gateway.policy.evaluate import Facts, effect_of, evaluate, listed_tier
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.policy.windows import WindowUse, WindowUses, window_uses
from keyturn.gateway.protocol.records import ItemState, Person, Record, Tier
from keyturn.gateway.protocol.strict_json import JsonObject

_TEN_MINUTES_MS = 600_000
_HOUR_MS = 3_600_000
_LET_THROUGH = frozenset({EventName.CALL_RAN, EventName.CALL_HANDED_OVER})
_RELEASES = frozenset(
    {EventName.ITEM_REJECTED, EventName.ITEM_ANSWERED, EventName.ITEM_EXPIRED}
    | {EventName.ITEM_SUPERSEDED, EventName.ITEM_WITHDRAWN, EventName.ITEM_LAPSED}
)


class PastCall(Record):
    """The call of a row, when the export has it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    args: JsonObject
    requester: str = ""


class Row(Record):
    """One line of an audit export."""

    name: EventName
    at_ms: int
    agent: str = ""
    approval: str = ""
    item: str = ""
    tool: str = ""
    actor: str = ""
    roles: tuple[str, ...] = ()
    reason: str = ""
    tier: Tier | None = None
    data: dict[str, str] = Field(default_factory=dict[str, str])
    call: PastCall | None = None


class Replayed(Record):
    """One past call, with its tier at that time and under the new policy.

    ``lacking`` maps roles to missing votes: the call was approved then, but by fewer
    people than the new policy requires. ``is_complete`` is False if the row has no
    arguments: ``now`` is then the listed tier, and rules could raise it.
    """

    at_ms: int
    agent: str
    tool: str
    item: str = ""
    was: Tier
    now: Tier
    reasons: tuple[str, ...] = ()
    lacking: dict[str, int] = Field(default_factory=dict)
    is_complete: bool = True

    @property
    def is_changed(self) -> bool:
        """Return whether the new policy would decide differently."""
        return self.was is not self.now or bool(self.lacking)

    @property
    def is_raised(self) -> bool:
        """Return whether the new policy would ask for more."""
        return self.now.rank > self.was.rank or bool(self.lacking)


def replay(policy: Policy, rows: Iterable[Row]) -> list[Replayed]:
    """Evaluate every call of an export once, in the order of time."""
    history, listed = _History(), list(rows)
    votes = _votes(listed)
    return [
        _evaluated(policy, step, history, votes.get(step.row.item, {}))
        for step in _steps(listed)
        if history.sees(step)
    ]


_Voters = dict[str, tuple[str, ...]]
"""Approvers of a call, with the roles they had then."""


def _votes(rows: Iterable[Row]) -> dict[str, _Voters]:
    """Return the approvers of each authorized call; an edit makes votes void."""
    votes: dict[str, _Voters] = defaultdict(dict)
    approved: set[str] = set()
    for row in rows:
        if row.name is EventName.ITEM_EDITED:
            votes[row.item].clear()
        if row.name in {EventName.ITEM_VOTED, EventName.ITEM_AUTHORIZED} and row.roles:
            votes[row.item][row.actor] = row.roles
        if row.name is EventName.ITEM_AUTHORIZED:
            approved.add(row.item)
    return {item: votes[item] for item in approved if votes[item]}


def _unmet(requirement: Requirement, voters: _Voters) -> dict[str, int]:
    """Return the missing votes by role, counting each voter with the roles of then."""
    counted = [
        Vote(by=Person(team="", user=who), roles=roles, action_hash="", at_ms=0)
        for who, roles in voters.items()
    ]
    count = tally(requirement, counted, "")
    if count.is_met:
        return {}
    names = " or ".join(role.name for role in requirement.roles)
    return count.lacking or {names or "nobody": count.need - count.have}


class _Step(NamedTuple):
    """A row with the time at which it counts; ``is_call`` marks the start of a call."""

    at_ms: int
    row: Row
    is_call: bool


@dataclass
class _Share:
    """The share of one call in a total, and its start; 0 once given back."""

    at_ms: int
    amount: int


class _Rolling:
    """A total over the last milliseconds; time only moves forward."""

    def __init__(self) -> None:
        self._shares: deque[_Share] = deque()
        self._total = 0

    def add(self, at_ms: int, amount: int = 1) -> _Share:
        share = _Share(at_ms, amount)
        self._shares.append(share)
        self._total += amount
        return share

    def give_back(self, share: _Share) -> None:
        # The amount becomes 0, so that giving back a share twice, or after it left the
        # window, subtracts nothing.
        self._total -= share.amount
        share.amount = 0

    def total(self, since_ms: int) -> int:
        """Return the total since a time, and drop older shares."""
        # `<=`, as in the store: a use stops counting at its exact end.
        while self._shares and self._shares[0].at_ms <= since_ms:
            self.give_back(self._shares.popleft())
        return self._total


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


class _History:
    """The state before a call: totals, requests, failures, rejections."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], _Rolling] = defaultdict(_Rolling)
        self._uses: dict[str, list[tuple[_Rolling, _Share]]] = defaultdict(list)
        self._requests: dict[str, _Rolling] = defaultdict(_Rolling)
        self._failures: dict[str, _Rolling] = defaultdict(_Rolling)
        self._rejections: dict[str, int] = defaultdict(int)
        self._counted: set[tuple[str, str]] = set()
        self.precedents = PrecedentFold()

    def sees(self, step: _Step) -> bool:
        """Record a row that is not a call; return True for a call."""
        row = step.row
        if step.is_call:
            return True
        self.precedents.record(row.name, row.item, at_ms=step.at_ms, reason=row.reason)
        if row.name in _RELEASES:
            for window, share in self._uses.pop(row.item, ()):
                window.give_back(share)
        if row.name in {EventName.ITEM_FAILED, EventName.CALL_FAILED}:
            self._failures[row.agent].add(step.at_ms)
        # A gesture on several calls counts once for each agent, as in the store.
        gesture = (row.agent, row.data.get(BATCH_MEMBER, row.item))
        if row.name is EventName.ITEM_REJECTED and gesture not in self._counted:
            self._rejections[row.agent] += 1
        # An authorization by the policy is not an approval by a person.
        elif row.name is EventName.ITEM_AUTHORIZED and row.actor != BY_POLICY:
            self._rejections[row.agent] = 0
        else:
            return False
        self._counted.add(gesture)
        return False

    def facts(self, step: _Step, found: WindowUses, effect: str) -> Facts:
        """Return the facts of a call with these window uses."""
        row = step.row
        return Facts(
            now_ms=step.at_ms,
            windows={use.window: self._total(step, use) for use in found.uses},
            requester=row.call.requester if row.call else "",
            # This call may go to people as well.
            requests_10m=1
            + self._requests[row.agent].total(step.at_ms - _TEN_MINUTES_MS),
            failures_1h=self._failures[row.agent].total(step.at_ms - _HOUR_MS),
            rejections_in_row=self._rejections[row.agent],
            same_done_24h=self.precedents.count(
                effect, PrecedentKind.DONE, now_ms=step.at_ms
            ),
            same_rejected_24h=self.precedents.count(
                effect, PrecedentKind.REJECTED, now_ms=step.at_ms
            ),
            problems=found.problems,
        )

    def asked(self, step: _Step) -> None:
        """Count a call that goes to people."""
        self._requests[step.row.agent].add(step.at_ms)

    def reserve(self, step: _Step, found: WindowUses, *, is_denied: bool) -> None:
        """Count a call in its windows from now on; a denied one only as a request."""
        for use in found.uses:
            if is_denied and not use.is_request:
                continue
            window = self._windows[use.window, use.key]
            share = window.add(step.at_ms, use.amount_micro)
            if step.row.item and not use.is_request:
                self._uses[step.row.item].append((window, share))

    def _total(self, step: _Step, use: WindowUse) -> int:
        window = self._windows[use.window, use.key]
        return window.total(step.at_ms - use.within_ms) + use.amount_micro


def _evaluated(
    policy: Policy, step: _Step, history: _History, voters: _Voters
) -> Replayed:
    row = step.row
    if row.call is None:
        now = listed_tier(policy, agent=row.agent, tool=row.tool)
        reasons: tuple[str, ...] = ()
        lacking: dict[str, int] = {}
    else:
        agent, tool, args = row.agent, row.tool, row.call.args
        requester = row.call.requester
        found = window_uses(
            policy, agent=agent, tool=tool, args=args, requester=requester
        )
        effect = effect_of(policy, agent=agent, tool=tool, args=args)
        facts = history.facts(step, found, effect)
        evaluation = evaluate(policy, agent=agent, tool=tool, args=args, facts=facts)
        now, reasons = evaluation.tier, evaluation.reasons
        is_asked = now.needs_people and bool(voters)
        lacking = _unmet(evaluation.requirement, voters) if is_asked else {}
        history.reserve(step, found, is_denied=now is Tier.DENY)
        if row.item:
            history.precedents.opened(row.item, effect)
        elif row.name in _LET_THROUGH:
            history.precedents.ran(effect, at_ms=step.at_ms)
    if now.needs_people:
        history.asked(step)
    return Replayed(
        at_ms=step.at_ms,
        agent=row.agent,
        tool=row.tool,
        item=row.item,
        was=row.tier or Tier.APPROVE,
        now=now,
        reasons=reasons,
        lacking=lacking,
        is_complete=row.call is not None,
    )


def _steps(rows: Sequence[Row]) -> list[_Step]:
    """Return calls and other rows by time; a call counts from its card's opening."""
    # Reversed, so that the first event of an approval sets the time.
    opened = {row.approval: row.at_ms for row in reversed(rows) if row.approval}
    calls = {row.item: row.call for row in rows if row.item and row.call}
    seen: set[str] = set()
    steps: list[_Step] = []
    for row in rows:
        if row.name in _LET_THROUGH | {EventName.CALL_DENIED}:
            steps.append(_Step(row.at_ms, row, is_call=True))
            continue
        if row.item and row.tool and row.tier and row.item not in seen:
            seen.add(row.item)
            at_ms = min(row.at_ms, opened.get(row.approval, row.at_ms))
            first = row.with_(call=calls.get(row.item))
            steps.append(_Step(at_ms, first, is_call=True))
        steps.append(_Step(row.at_ms, row, is_call=False))
    # Stable: rows of one millisecond keep the order of the log.
    return sorted(steps, key=lambda step: step.at_ms)
