"""Decide calls of several approvals by one gesture, in one write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from twokey.gateway.approvals.batch_deciding import ONE_EDIT
from twokey.gateway.approvals.collection_deciding import (
    Choice,
    CollectionChange,
    SeenCollection,
    decide_together,
)
from twokey.gateway.approvals.decisions import (
    CollectionDecided,
    CollectionOutcome,
    CollectionRefused,
    Edit,
    Reviewer,
    has_expired,
)
from twokey.gateway.approvals.record import Approval
from twokey.gateway.policy.rules import Policy
from twokey.gateway.service.gesture_evaluation import (
    DecidedCall,
    EvaluatedGesture,
    evaluate_gesture,
)
from twokey.gateway.service.reevaluation import counts_in_windows
from twokey.gateway.service.refused_decisions import RefusedDecisions
from twokey.gateway.service.rejections import rejection_of
from twokey.gateway.service.sweep import Sweeper
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.service.voters import Voters, asked
from twokey.gateway.store.atomic_write import Loaded, Write, WriteMany
from twokey.gateway.store.store import Store


class CollectedDecisions(PolicyService):
    """What one gesture decides on calls of several approvals of a tenant."""

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._refused = RefusedDecisions(store)

    async def decide(
        self,
        seen: SeenCollection,
        decisions: Sequence[Choice | None],
        reviewer: Reviewer,
        *,
        voters: Voters | None = None,
    ) -> CollectionOutcome:
        """Decide calls by one gesture, in one write; all of it counts or nothing.

        Only calls that the policy of this moment escalates, and those that repeat
        another, are left out and named.

        Args:
            seen: what the reviewer saw.
            decisions: on each call, in the same order; None leaves it waiting.
            reviewer: who they are.
            voters: resolves those who voted before, who are unknown without it.

        Raises:
            StoreUnavailable: when it is not known to be written.
            CorruptRecord: when a record is corrupt.
            ValueError: when more are decided than `MOST_CHANGED`.
        """
        settled: list[CollectionDecided] = []
        known = dict[int, Approval]()
        # Of what is left waiting nothing is asked, so nothing of it is read.
        ids = {
            number: click.approval
            for number, (click, decision) in enumerate(
                zip(seen.clicks, decisions, strict=True)
            )
            if decision is not None
        }

        async def compute(
            read: Mapping[str, Loaded],
        ) -> WriteMany | CollectionOutcome:
            loaded = {
                number: read[one]
                for number, one in ids.items()
                if one in read and read[one].approval.tenant == self._tenant
            }
            known.update((number, one.approval) for number, one in loaded.items())
            now_ms = max((one.now_ms for one in loaded.values()), default=0)
            calls = {
                number: DecidedCall(
                    one.approval, seen.clicks[number].index, decisions[number]
                )
                for number, one in loaded.items()
            }
            if edits := self._adding_up(calls):
                return CollectionRefused(refusals=dict.fromkeys(edits, ONE_EDIT))
            evaluated = await evaluate_gesture(
                self._store, self._policy(), calls, now_ms=now_ms
            )
            result = decide_together(
                {one.approval.id: one.approval for one in loaded.values()},
                seen,
                decisions,
                reviewer,
                now_ms=now_ms,
                policies={
                    number: one.policy_now for number, one in evaluated.calls.items()
                },
                voters={
                    number: await asked(call.approval, call.index, voters)
                    for number, call in calls.items()
                },
                repeats=evaluated.repeats,
                key=self._decision_key,
            )
            if not isinstance(result, CollectionChange):
                return result
            settled[:] = [result.outcome]
            return await self._writes(seen, result, evaluated)

        # Calls that share a card are of one agent, so they are on one shard.
        keys = next(map(self._store.keys_of_approval, ids.values()), None) or self._own
        found = await self._store.approvals.change_many(keys, ids.values(), compute)
        if isinstance(found, WriteMany):
            return settled[0]
        if isinstance(found, CollectionRefused):
            await self._expire(seen, found)
            await self._note(seen, decisions, found, known, reviewer)
        return found

    async def _note(
        self,
        seen: SeenCollection,
        decisions: Sequence[Choice | None],
        refused: CollectionRefused,
        known: Mapping[int, Approval],
        reviewer: Reviewer,
    ) -> None:
        """Write to the audit log which calls somebody may not decide, one by one."""
        for number, refusal in refused.refusals.items():
            decision = decisions[number]
            if number in known and decision is not None:
                click, read = seen.clicks[number], [known[number]]
                await self._refused.noted(refusal, read, click, decision.kind, reviewer)

    def _adding_up(self, calls: Mapping[int, DecidedCall]) -> list[int]:
        """Return the edited calls where several of them are added up in one window."""
        edited = [n for n, call in calls.items() if isinstance(call.decision, Edit)]
        policy = self._policy()
        counted = [n for n in edited if counts_in_windows(policy, calls[n].approval)]
        return counted if len(counted) > 1 else []

    async def _writes(
        self,
        seen: SeenCollection,
        result: CollectionChange,
        evaluated: EvaluatedGesture,
    ) -> WriteMany:
        writes: list[Write] = []
        for number, change in result.changes.items():
            item = change.approval.items[seen.clicks[number].index]
            one = evaluated.calls.get(number)
            # A rejected call gives its uses back in this very write: it takes no new.
            used = one.used if one and item.may_run else None
            rejection = await rejection_of(
                self._store, self._policy(), change.approval, [item]
            )
            writes.append(
                Write(
                    change,
                    inputs={item.index: used} if used else {},
                    rejection=rejection,
                )
            )
        return WriteMany(writes, [result.event])

    async def _expire(self, seen: SeenCollection, refused: CollectionRefused) -> None:
        """End calls whose time was over before the sweep, so that cards say so."""
        sweeper = Sweeper(self._store)
        for number, refusal in refused.refusals.items():
            if has_expired(refusal):
                await sweeper.expire_one(seen.clicks[number].approval)
