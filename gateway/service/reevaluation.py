"""Evaluate a call again by the current policy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from keyturn.gateway.approvals.decisions import Decision, Edit
from keyturn.gateway.approvals.permission import is_dead_end
from keyturn.gateway.approvals.raising import shown_item
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.effects import reads_precedents
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.strict_json import accept_object
from keyturn.gateway.protocol.tiers import Tier
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service.call_evaluation import (
    CurrentEvaluation,
    WaitingCall,
    read_calls,
)
from keyturn.gateway.service.queue import ReviewQueue
from keyturn.gateway.store.store import Store

# Each takes readings of its own, and this runs whenever the policy changes.
MOST_LOOKED_AT = 1_000
"""How many approvals are looked at, those that are due soonest."""


def call_of(
    approval: Approval, index: int, decision: Decision | None
) -> WaitingCall | None:
    """Return what would run by a decision on one call of an approval.

    None where there is no decision, no such call, or arguments that are not strict
    JSON, for which the decision itself is refused.
    """
    if decision is None or not 0 <= index < len(approval.items):
        return None
    item = approval.items[index]
    args = item.args
    if isinstance(decision, Edit):
        try:
            # The strict copy, as the edit itself will be read, since that runs.
            args = accept_object(decision.args)
        except BadJson:
            return None
    return WaitingCall(approval, item, args)


async def evaluate_decision(
    store: Store,
    policy: Policy,
    approval: Approval,
    index: int,
    decision: Decision | None,
) -> CurrentEvaluation | None:
    """Evaluate what would run by a decision on one call, as of now; see `call_of`."""
    edited = [decision.args] if isinstance(decision, Edit) else ()
    call = await aside(partial(call_of, approval, index, decision), edited)
    if call is None:
        return None
    [read] = await read_calls(store, policy, [call])
    return await aside(read.evaluated, [call.args])


async def evaluate_waiting(
    store: Store, policy: Policy, approval: Approval
) -> dict[int, CurrentEvaluation]:
    """Evaluate each call that waits, by its index."""
    waiting = [item for item in approval.items if item.is_pending]
    calls = await aside(
        lambda: [WaitingCall(approval, item, item.args) for item in waiting],
        [item.action for item in waiting],
    )
    read = await read_calls(store, policy, calls)
    pairs = zip(waiting, read, strict=True)
    return {
        item.index: await aside(one.evaluated, [item.action]) for item, one in pairs
    }


def shown_as(
    approval: Approval, evaluated: Mapping[int, CurrentEvaluation]
) -> Approval:
    """Return an approval whose waiting calls need what they were evaluated to need.

    It is for showing: nothing is written.
    """
    items = approval.items
    return approval.replacing(
        *(shown_item(items[i], one.policy_now) for i, one in evaluated.items())
    )


async def as_of_now(store: Store, policy: Policy, approval: Approval) -> Approval:
    """Return an approval whose waiting calls need what the current policy asks for."""
    return shown_as(approval, await evaluate_waiting(store, policy, approval))


def counts_in_windows(policy: Policy, approval: Approval) -> bool:
    """Return whether the uses of a waiting call are added up with those of others."""
    rules = policy.windows.values()
    waiting = (item for item in approval.items if item.is_pending)
    return any(rule.covers(item.tool) for item in waiting for rule in rules)


def depends_on_others(policy: Policy, approval: Approval) -> bool:
    """Return whether what other calls do may change what a waiting call needs."""
    waiting = (item for item in approval.items if item.is_pending)
    return counts_in_windows(policy, approval) or any(
        reads_precedents(policy, approval.agent, item.tool) for item in waiting
    )


async def dead_ends(store: Store, policy: Policy, *, tenant: str) -> list[Item]:
    """Return waiting calls that nobody can approve by this policy.

    The policy changes while calls wait: people are replaced, roles get other names, a
    tool is forbidden. Such a call can still be rejected, and it ends by its own time;
    the operator of the gateway should know of it before.

    Args:
        store: has the calls.
        policy: that is in force.
        tenant: whose calls.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    found: list[Item] = []
    waiting = ReviewQueue(store, tenant=tenant).waiting(MOST_LOOKED_AT)
    async for loaded in waiting:
        shown = await as_of_now(store, policy, loaded.approval)
        found += [item for item in shown.items if _is_stuck(shown, item)]
    return found


def _is_stuck(approval: Approval, item: Item) -> bool:
    if not item.is_pending:
        return False
    return item.tier is Tier.DENY or is_dead_end(approval, item, item.requirement)
