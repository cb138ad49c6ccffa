"""Evaluate the calls of one gesture, each also beside those approved before it.

A call is approved for itself by what is reserved and what was done until now. Several
calls that are approved at once would not know of each other: two with one effect, or
two that a window has room for only once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from keyturn.gateway.approvals.decisions import Approve, Decision, Edit
from keyturn.gateway.approvals.gestures import is_escalated
from keyturn.gateway.approvals.precedents import Precedent
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.states import ItemState
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service.call_evaluation import (
    Beside,
    CurrentEvaluation,
    ReadCall,
    WaitingCall,
    read_calls,
)
from keyturn.gateway.service.reevaluation import call_of
from keyturn.gateway.store.store import Store


@dataclass(frozen=True)
class DecidedCall:
    """A call, and what one gesture decides of it."""

    approval: Approval
    index: int
    decision: Decision | None


@dataclass(frozen=True)
class EvaluatedGesture:
    """What the policy of now says of each call that one gesture decides.

    ``repeats`` are the calls that need more once those before them are approved.
    """

    calls: Mapping[int, CurrentEvaluation]
    repeats: frozenset[int]


async def evaluate_gesture(
    store: Store, policy: Policy, calls: Mapping[int, DecidedCall], *, now_ms: int
) -> EvaluatedGesture:
    """Evaluate each call of a gesture, also beside those that it approves.

    Args:
        store: where everything is kept.
        policy: in force.
        calls: by a number, in the order of which they are approved.
        now_ms: the store's clock.
    """
    found: dict[int, CurrentEvaluation] = {}
    repeats: set[int] = set()
    before = _Approved(now_ms)
    asked = dict[int, WaitingCall]()
    for number, call in sorted(calls.items()):
        edited = [call.decision.args] if isinstance(call.decision, Edit) else ()
        of = partial(call_of, call.approval, call.index, call.decision)
        if waiting := await aside(of, edited):
            asked[number] = waiting
    read = await read_calls(store, policy, [*asked.values()])
    for number, one_read in zip(asked, read, strict=True):
        call, one = calls[number], await aside(one_read.evaluated)
        approval, index, decision = call.approval, call.index, call.decision
        found[number] = one
        if not isinstance(decision, Approve | Edit):
            continue
        if isinstance(decision, Approve) and is_escalated(
            approval.items[index], one.policy_now
        ):
            continue  # it is left out
        # The claim would see the first of two such calls, and send the second back:
        # nobody is told that both are approved.
        beside = before.beside(one_read, one)
        if beside is not None:
            again = await aside(partial(one_read.evaluated, beside))
            needs_more = before.ask_more(call, again, one)
            # An edit is kept, and waits for those whom it needs then.
            if needs_more or beside.micro:
                found[number] = again
            if needs_more:
                repeats.add(number)
                if isinstance(decision, Approve):
                    continue
        before.add(call, one)
    return EvaluatedGesture(found, frozenset(repeats))


@dataclass(frozen=True)
class _Approved:
    """The calls of a gesture that would be approved before another one.

    Attributes:
        now_ms: the store's clock.
        precedents: the calls, by effect.
        totals: by window key, what it came to with each of them alone.
    """

    now_ms: int
    precedents: dict[str, list[Precedent]] = field(
        default_factory=lambda: defaultdict[str, list[Precedent]](list)
    )
    totals: dict[str, list[int]] = field(
        default_factory=lambda: defaultdict[str, list[int]](list)
    )

    def add(self, call: DecidedCall, one: CurrentEvaluation) -> None:
        """Take in a call that is approved."""
        if effect := one.policy_now.effect:
            self.precedents[effect].append(
                Precedent(
                    call=call.approval.items[call.index].id,
                    state=ItemState.AUTHORIZED,
                    agent=call.approval.agent,
                    since_ms=self.now_ms,
                    at_ms=self.now_ms,
                )
            )
        for use in one.used.uses:
            self.totals[use.window].append(one.used.totals[use.name])

    def beside(self, read: ReadCall, one: CurrentEvaluation) -> Beside | None:
        """Return what they leave for a later call; None: nothing that concerns it."""
        effect = one.policy_now.effect
        same = {effect: self.precedents[effect]} if effect in self.precedents else {}
        micro: dict[str, int] = {}
        for use in one.used.uses:
            if added := self._added(use.window, read.held):
                micro[use.window] = added
        return Beside(same, micro) if same or micro else None

    def _added(self, window: str, held: Mapping[str, int]) -> int:
        """Return what they add to a window: nothing where all was reserved before."""
        # What an edit adds, or what is used by a policy that was loaded since.
        return sum(max(0, one - held[window]) for one in self.totals.get(window, ()))

    def ask_more(
        self, call: DecidedCall, again: CurrentEvaluation, alone: CurrentEvaluation
    ) -> bool:
        """Return whether a call needs another look after them."""
        now, before = again.policy_now, alone.policy_now
        if (now.tier, now.requirement) != (before.tier, before.requirement):
            return True
        # As `repeating.unseen` has it for calls that were approved before: those of
        # one approval stand on one card.
        others = self.precedents.get(now.effect, ())
        return bool(now.past.same_by) and any(
            one.approval != call.approval.id for one in others
        )
