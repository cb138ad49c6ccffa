"""Decide calls by one gesture, in one write; all of it counts or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from keyturn.gateway.approvals.decisions import (
    Approve,
    Edit,
    Expired,
    GestureOutcome,
    GestureRefused,
    Reviewer,
)
from keyturn.gateway.approvals.gestures import (
    ONE_EDIT,
    Asked,
    Gesture,
    GestureChange,
    decide_gesture,
)
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service.gesture_evaluation import (
    DecidedCall,
    EvaluatedGesture,
    evaluate_gesture,
)
from keyturn.gateway.service.reevaluation import counts_in_windows, evaluate_decision
from keyturn.gateway.service.refused_decisions import RefusedDecisions
from keyturn.gateway.service.standing import rejection_of
from keyturn.gateway.service.sweep import Sweeper
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.service.voters import Voters, asked
from keyturn.gateway.store.atomic_write import Loaded, Write, WriteMany
from keyturn.gateway.store.store import Store


class DecisionService(PolicyService):
    """What people decide of calls of a tenant."""

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._refused = RefusedDecisions(store)
        self._sweeper = Sweeper(store, tenant=tenant)

    async def decide(
        self,
        gesture: Gesture,
        reviewer: Reviewer,
        *,
        voters: Voters | None = None,
        seen: Loaded | None = None,
    ) -> GestureOutcome:
        """Decide what a gesture decides; atomic, and safe to repeat.

        The decisions, their audit entries, their events and the jobs that bring agents
        back are one write. The current policy is asked as well as the pinned one, and
        the stricter wins.

        Args:
            gesture: what the person saw and decided.
            reviewer: who they are.
            voters: resolves those who voted before, who are unknown without it.
            seen: a record when the caller has just read it; spares one reading.

        Raises:
            StoreUnavailable: when it is not known to be written.
            CorruptRecord: when a record is corrupt.
            ValueError: when more approvals are decided than `MOST_CHANGED`.
        """
        decided, card = gesture.decided, gesture.card
        settled: list[GestureChange] = []
        records = dict[str, Approval]()

        async def compute(read: Mapping[str, Loaded]) -> WriteMany | GestureOutcome:
            own = [one for one in read.values() if one.approval.tenant == self._tenant]
            records.clear()
            records.update((one.approval.id, one.approval) for one in own)
            policy = self._policy()
            calls = {
                place: DecidedCall(records[click.approval], click.index, decision)
                for place, (click, decision) in decided.items()
                if click.approval in records
            }
            if _edits_add_up(policy, calls):
                return ONE_EDIT
            now_ms = max((one.now_ms for one in own), default=0)
            evaluated = await evaluate_gesture(
                self._store, policy, calls, now_ms=now_ms
            )
            decide = partial(
                decide_gesture,
                dict(records),
                gesture,
                reviewer,
                now_ms=now_ms,
                asked=await self._asked(gesture, calls, evaluated, voters),
                key=self._decision_key,
            )
            items = [item for one in own for item in one.approval.items]
            result = await aside(decide, [item.action for item in items])
            if not isinstance(result, GestureChange):
                return result
            settled[:] = [result]
            return await self._writes(policy, calls, result, evaluated)

        # Nothing is read of other approvals whose calls are left waiting.
        ids = [click.approval for click, _ in decided.values()]
        if not ids and card:
            ids = [card.approval]
        known = {seen.approval.id: seen} if seen and seen.stored else {}
        approvals = self._store.approvals
        found = await approvals.change_many(self._keys, ids, compute, known)
        if isinstance(found, WriteMany):
            return settled[0].outcome
        await self._refuse(gesture, found, records, reviewer)
        return found

    async def _asked(
        self,
        gesture: Gesture,
        calls: Mapping[int, DecidedCall],
        evaluated: EvaluatedGesture,
        voters: Voters | None,
    ) -> Asked:
        waiting = None
        for call in calls.values():
            if gesture.card is None and isinstance(call.decision, Edit):
                policy, of = self._policy(), (call.approval, call.index, Approve())
                waiting = await evaluate_decision(self._store, policy, *of)
        return Asked(
            {place: one.policy_now for place, one in evaluated.calls.items()},
            {
                place: await asked(call.approval, call.index, voters)
                for place, call in calls.items()
            },
            evaluated.repeats,
            waiting.policy_now if waiting else None,
        )

    async def _writes(
        self,
        policy: Policy,
        calls: Mapping[int, DecidedCall],
        result: GestureChange,
        evaluated: EvaluatedGesture,
    ) -> WriteMany:
        writes: list[Write] = []
        for approval_id, change in result.changes.items():
            after = change.approval
            # Without calls that are left out: they reserve nothing.
            items = {
                place: after.items[call.index]
                for place, call in calls.items()
                if call.approval.id == approval_id
                and after.items[call.index] is not call.approval.items[call.index]
            }
            used = {
                # A rejected call gives its uses back in this very write.
                item.index: evaluated.calls[place].used
                for place, item in items.items()
                if place in evaluated.calls and item.may_run
            }
            rejection = await rejection_of(
                self._store, policy, after, [*items.values()]
            )
            inputs = {index: one for index, one in used.items() if one}
            writes.append(Write(change, inputs=inputs, rejection=rejection))
        return WriteMany(writes, result.events)

    async def _refuse(
        self,
        gesture: Gesture,
        outcome: GestureOutcome,
        records: Mapping[str, Approval],
        reviewer: Reviewer,
    ) -> None:
        """End calls whose time is over, and write to the audit log who may not decide.

        The click came before the sweep: so the card shows the end.
        """
        decided = gesture.decided
        refusals = dict.fromkeys(decided, outcome)
        if isinstance(outcome, GestureRefused):
            refusals = dict(outcome.refusals)
        late = {
            gesture.choices[place].click.approval
            for place, refusal in refusals.items()
            if isinstance(refusal, Expired) and place in gesture.choices
        }
        for approval_id in sorted(late):
            await self._sweeper.expire(approval_id)
        for place, (click, decision) in decided.items():
            if place in refusals and click.approval in records:
                refused = (refusals[place], records[click.approval])
                await self._refused.note(*refused, click, decision.kind, reviewer)


def _edits_add_up(policy: Policy, calls: Mapping[int, DecidedCall]) -> bool:
    """Return whether several edits of one gesture add up in one window.

    Each is evaluated beside what is reserved, so together they could pass a limit that
    the second of them would not pass after the first.
    """
    edits = [one for one in calls.values() if isinstance(one.decision, Edit)]
    return sum(counts_in_windows(policy, one.approval) for one in edits) > 1
