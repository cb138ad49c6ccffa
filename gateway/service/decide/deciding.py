"""Decide calls by one gesture, in one write, all or nothing.

A single call is evaluated against the windows and precedents of this moment. Calls that
one gesture approves would miss each other there: two with the same effect, or two where
a window has room for one. So each is also evaluated together with earlier calls of the
same effect, and with all amounts that the gesture adds to its windows.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import time_ns
from typing import NamedTuple

from keyturn.gateway import tracing
from keyturn.gateway.approvals import decisions, gestures
from keyturn.gateway.approvals.deciding import no_such_item
from keyturn.gateway.approvals.events import Event, EventName, approval_event
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.precedents import Precedent
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.failures import log_failure
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.service.submit.call_evaluation import (
    CurrentEvaluation,
    WaitingCall,
    call_by,
    evaluate_now,
    read_calls,
)
from keyturn.gateway.service.submit.standing import rejection_of
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store.records.atomic_write import Loaded, Write, WriteMany
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

_MOST_KNOWN = 1000

Voters = Callable[[Item], Awaitable[Sequence[decisions.Reviewer]]]
"""Resolves the earlier voters of an item as they are now."""


class _Decided(NamedTuple):
    """A call as it would run, and the decision of one gesture on it."""

    call: WaitingCall
    decision: decisions.Decision


class DecisionService(PolicyService):
    """The decisions of people on the calls of a tenant."""

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._told: dict[tuple[str, str, int, str], None] = {}
        self._sweeper = Sweeper(store, tenant=tenant)

    async def decide_gesture(
        self,
        gesture: gestures.Gesture,
        reviewer: decisions.Reviewer,
        *,
        voters: Voters | None = None,
        read: Loaded | None = None,
    ) -> decisions.GestureOutcome:
        """Apply the decisions of a gesture; atomic, and safe to repeat.

        The decisions, their audit entries, their events and the jobs that resume the
        agents are one write. Both the pinned and the current policy apply, and the
        stricter one wins.

        Args:
            gesture: the card as the person saw it, and their decisions.
            reviewer: the person.
            voters: resolves the earlier voters; without it they are unknown.
            read: the approval, if it was read for this gesture.

        Raises:
            StoreUnavailable: when it is not known to be written.
            CorruptRecord: when a record is corrupt.
            ValueError: when more approvals are decided than `MOST_CHANGED`.
        """
        began_ns = time_ns()
        decided, card = gesture.decided, gesture.card
        settled: list[gestures.GestureChange] = []
        records = dict[str, Approval]()

        async def compute(
            read: Mapping[str, Loaded],
        ) -> WriteMany | decisions.GestureOutcome:
            own = [one for one in read.values() if one.approval.tenant == self._tenant]
            records.clear()
            records.update((one.approval.id, one.approval) for one in own)
            policy = self._policy()
            calls = {
                place: _Decided(
                    await call_by(one, one.items[click.index], decision), decision
                )
                for place, (click, decision) in decided.items()
                if (one := records.get(click.approval))
                and no_such_item(one, click) is None
            }
            now_ms = max((one.now_ms for one in own), default=0)
            evaluated, repeats = await _evaluate(
                self._store, policy, calls, now_ms=now_ms
            )
            decide = partial(
                gestures.decide_gesture,
                dict(records),
                gesture,
                reviewer,
                now_ms=now_ms,
                calls={
                    place: decisions.CallNow(
                        one.policy_now,
                        await _voters_before(calls[place].call.item, voters),
                        await self._waiting_edited(policy, gesture, calls[place]),
                        repeats=place in repeats,
                    )
                    for place, one in evaluated.items()
                },
                key=self._decision_key,
            )
            items = [item for one in own for item in one.approval.items]
            result = await aside(decide, [item.action for item in items])
            if not isinstance(result, gestures.GestureChange):
                return result
            settled[:] = [result]
            return await self._writes(policy, calls, result, evaluated)

        # Approvals whose calls keep waiting are not read.
        ids = [click.approval for click, _ in decided.values()]
        if not ids and card:
            ids = [card.approval]
        known = {read.approval.id: read} if read and read.stored else {}
        found = await self._store.approvals.change_many(
            self._keys, ids, compute, read=known
        )
        if isinstance(found, WriteMany):
            for click, decision in decided.values():
                if change := settled[0].changes.get(click.approval):
                    _trace(change.approval, click.index, decision.kind, began_ns)
            return settled[0].outcome
        await self._refuse(gesture, found, records, reviewer)
        return found

    async def _waiting_edited(
        self, policy: Policy, gesture: gestures.Gesture, decided: _Decided
    ) -> PolicyDecision | None:
        """Evaluate an edited call also with its arguments before the edit."""
        if gesture.card is not None or not isinstance(decided.decision, decisions.Edit):
            return None
        item = decided.call.item
        call = replace(decided.call, args=item.args)
        return (await evaluate_now(self._store, policy, call)).policy_now

    async def _writes(
        self,
        policy: Policy,
        calls: Mapping[int, _Decided],
        result: gestures.GestureChange,
        evaluated: Mapping[int, CurrentEvaluation],
    ) -> WriteMany:
        writes: list[Write] = []
        for approval_id, change in result.changes.items():
            after = change.approval
            # Unchanged calls reserve nothing.
            items = {
                place: after.items[call.item.index]
                for place, (call, _) in calls.items()
                if call.approval.id == approval_id
                and after.items[call.item.index] is not call.item
            }
            inputs = {
                # A rejected call releases its uses in this write.
                item.index: evaluated[place].used
                for place, item in items.items()
                if item.may_run
            }
            rejection = await rejection_of(
                self._store, policy, after, [*items.values()]
            )
            writes.append(Write(change, inputs=inputs, rejection=rejection))
        return WriteMany(writes, result.events)

    async def _refuse(
        self,
        gesture: gestures.Gesture,
        outcome: decisions.GestureOutcome,
        records: Mapping[str, Approval],
        reviewer: decisions.Reviewer,
    ) -> None:
        """End calls whose time is over, and log forbidden decisions in the audit log.

        The click came before the sweep; ending the calls now updates their card.
        """
        late = set[str]()
        for place, (click, decision) in gesture.choices.items():
            refusal = outcome
            if isinstance(outcome, decisions.GestureRefused):
                refusal = outcome.refusals.get(place, outcome)
            if isinstance(refusal, decisions.Expired):
                late.add(click.approval)
            if not isinstance(refusal, decisions.Forbidden) or decision is None:
                continue
            if click.approval in records:
                of = (records[click.approval], click, decision.kind, reviewer)
                await self._note(_event(refusal, *of), click.version)
        for approval_id in sorted(late):
            await self._sweeper.expire(approval_id)

    async def _note(self, event: Event, version: int) -> None:
        """Write a forbidden decision to the audit log.

        A refusal changes no record, so its entry is written separately afterwards. If
        that write fails, only the log of the process has the refusal. There is one
        entry for each person, version of the card and reason; another click adds none.
        """
        told = (event.actor, event.approval, version, event.reason)
        if told in self._told:
            return
        try:
            await self._store.audit(self._keys).append(event)
        except KeyturnError as error:
            log_failure(logger, error, "decision.refusal_unrecorded")
        if len(self._told) >= _MOST_KNOWN:
            del self._told[next(iter(self._told))]
        self._told[told] = None


def _trace(approval: Approval, index: int, verb: str, began_ns: int) -> None:
    item = approval.items[index]
    told = tracing.about(
        item.tool, item.ctx.tool_call_id, item.tier, item.id, decision=verb
    )
    tracing.record("keyturn.decide", approval.trace, told, began_ns)


async def _voters_before(
    item: Item, voters: Voters | None
) -> Sequence[decisions.Reviewer]:
    """Resolve the earlier voters of an item; without votes nothing is requested."""
    if voters is None:
        return ()
    if item.state is ItemState.IN_DOUBT:
        # The votes that count here are the observations of this attempt, not the
        # approvals of the call.
        found = tuple(one.vote for one in item.observations_now)
        return await voters(item.with_(votes=found)) if found else ()
    return await voters(item) if item.is_pending and item.votes else ()


async def _evaluate(
    store: Store, policy: Policy, calls: Mapping[int, _Decided], *, now_ms: int
) -> tuple[dict[int, CurrentEvaluation], set[int]]:
    """Evaluate each call of a gesture, also together with those that it approves.

    Args:
        store: the store.
        policy: the policy in force.
        calls: the calls by number; they are approved in the order of the numbers.
        now_ms: the store's clock.

    Returns:
        The current evaluation of each call, and the calls that need more approvals
        because of the others.
    """
    numbers = sorted(calls)
    each = await read_calls(store, policy, [calls[number].call for number in numbers])
    read = dict(zip(numbers, each, strict=True))
    found = {number: await aside(one.evaluated) for number, one in read.items()}
    approved = [n for n in numbers if _approves(calls[n], found[n].policy_now)]
    adds = {n: read[n].adds(found[n].used) for n in approved}
    added = sum(adds.values(), Counter[str]())
    earlier = defaultdict[str, list[Precedent]](list)
    repeats: set[int] = set()
    for number in approved:
        call, before = calls[number].call, found[number].policy_now
        same, more = earlier[before.effect], added - adds[number]
        # The claim of the second call would find the first one and revoke. Refuse here,
        # so that no reviewer reads that both are approved.
        if same or any(more[use.window] for use in found[number].used.uses):
            again = await aside(partial(read[number].evaluated, same, more))
            needs_more = _needs_more(call, again.policy_now, before, same)
            # An edit is kept, and waits for the approvals that it needs then.
            if needs_more or more:
                found[number] = again
            if needs_more:
                repeats.add(number)
                if isinstance(calls[number].decision, decisions.Approve):
                    continue
        if before.effect:
            same.append(
                Precedent(
                    call=call.item.id,
                    state=ItemState.AUTHORIZED,
                    agent=call.approval.agent,
                    since_ms=now_ms,
                    at_ms=now_ms,
                )
            )
    return found, repeats


def _approves(decided: _Decided, policy_now: PolicyDecision) -> bool:
    if isinstance(decided.decision, decisions.Edit):
        return True
    is_approval = isinstance(decided.decision, decisions.Approve)
    return is_approval and not gestures.is_escalated(decided.call.item, policy_now)


def _needs_more(
    call: WaitingCall,
    now: PolicyDecision,
    before: PolicyDecision,
    same: Sequence[Precedent],
) -> bool:
    """Return whether a call needs another look because of others of the gesture."""
    if (now.tier, now.requirement) != (before.tier, before.requirement):
        return True
    # The rule of `repeating.unseen` for calls that were approved before: the calls of
    # one approval are on one card.
    is_seen = all(one.approval == call.approval.id for one in same)
    return bool(now.past.same_by) and not is_seen


def _event(
    refusal: decisions.Forbidden,
    approval: Approval,
    click: decisions.Click,
    verb: str,
    reviewer: decisions.Reviewer,
) -> Event:
    item = next((one for one in approval.items if one.index == click.index), None)
    person = reviewer.person
    return approval_event(approval, EventName.DECISION_REFUSED, item).with_(
        actor=f"{person.team}/{person.user}",
        reason=refusal.reason,
        request_digest=click.request_digest,
        data={"verb": verb, "gesture": reviewer.gesture.value},
    )
