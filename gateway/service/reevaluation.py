"""Evaluate a call again by the current policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from twokey.gateway.approvals.batch_deciding import Partition
from twokey.gateway.approvals.decisions import Decision, Edit
from twokey.gateway.approvals.permission import is_dead_end
from twokey.gateway.approvals.policy_decision import PolicyDecision
from twokey.gateway.approvals.precedents import Precedent
from twokey.gateway.approvals.raising import shown_item
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.similar import Bounds
from twokey.gateway.errors import BadJson
from twokey.gateway.policy.effects import effect_of, reads_precedents
from twokey.gateway.policy.evaluate import evaluate
from twokey.gateway.policy.questions import evaluate_question
from twokey.gateway.policy.rules import Policy
from twokey.gateway.policy.standing import evaluate_standing
from twokey.gateway.protocol.strict_json import JsonObject, accept_object
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.service.denials import cannot_start_message, freeze_of
from twokey.gateway.service.precedents import past_of, with_precedents
from twokey.gateway.service.queue import ReviewQueue
from twokey.gateway.service.window_usage import facts_of, totals_now, usage_of
from twokey.gateway.store.agent_load import Wanted
from twokey.gateway.store.atomic_write import EvaluationInputs
from twokey.gateway.store.freezes import Freeze, names_of
from twokey.gateway.store.store import Store

# Each takes readings of its own, and this runs whenever the policy changes.
MOST_LOOKED_AT = 1_000
"""How many approvals are looked at, those that are due soonest."""


@dataclass(frozen=True)
class Beside:
    """What calls that are approved first by the same gesture leave for later ones.

    Attributes:
        precedents: these calls by their effect.
        micro: by window key, what they add to what is reserved.
    """

    precedents: Mapping[str, Sequence[Precedent]] = field(
        default_factory=dict[str, Sequence[Precedent]]
    )
    micro: Mapping[str, int] = field(default_factory=dict[str, int])


NOTHING: Final = Beside()


@dataclass(frozen=True)
class CurrentEvaluation:
    """What the policy of now says of a call, and what the call uses by it.

    ``freeze`` is what stops the call, if somebody froze it.
    """

    policy_now: PolicyDecision
    used: EvaluationInputs
    freeze: Freeze | None


async def evaluate_now(
    store: Store,
    policy: Policy,
    approval: Approval,
    item: Item,
    args: JsonObject,
    *,
    beside: Beside = NOTHING,
) -> CurrentEvaluation:
    """Evaluate an item with these arguments by this policy, as of now.

    Totals count what the item uses once, and everything else that is reserved.
    ``beside`` is what calls leave that would be approved first.
    """
    keys = store.keys_of_tenant(approval.tenant)
    if item.bounds is not None:
        return await _standing_now(store, policy, approval, item.bounds)
    requester = approval.requester.user if approval.requester else ""
    one = usage_of(
        policy,
        keys,
        item.ctx,
        item.tool,
        args,
        requester=requester,
        # The pinned schema, as at the submission: another one could give the same
        # resource another key, and the use would be counted apart from what is
        # reserved.
        declared_schema=item.args_schema,
    )
    totals = await totals_now(store, approval, item, one)
    for use in one.uses:
        if use.window in beside.micro:
            totals[use.name] += beside.micro[use.window]
    effect = effect_of(
        policy,
        agent=approval.agent,
        tool=item.tool,
        args=args,
        declared_schema=item.args_schema,
    )
    load = await store.agent_load.load(
        keys,
        approval.tenant,
        approval.agent,
        approval.thread,
        approval.run_ref,
        turn_key=approval.message_id,
        wanted=Wanted(effects=[effect], tools=[item.tool]),
    )
    known = load.precedents.get(keys.precedents(approval.tenant, effect))
    past = past_of(policy, item, known, one, totals)
    others = beside.precedents.get(effect, ())
    past = past.with_(precedents=(*others, *past.precedents))
    facts = facts_of(
        load, one, totals, requester=requester, requests_10m=load.requests_10m
    )
    freeze = freeze_of(load, approval.agent, item.tool)
    if item.is_question:
        asked = evaluate_question(
            policy,
            agent=approval.agent,
            tool=item.tool,
            has_requester=approval.requester is not None,
        )
        return CurrentEvaluation(asked, EvaluationInputs((), {}), freeze)
    policy_now = evaluate(
        policy,
        agent=approval.agent,
        tool=item.tool,
        args=args,
        # The agent's schema is pinned in the item since the call was submitted.
        declared_schema=None,
        facts=with_precedents(facts, past),
    ).with_(
        effect=effect,
        past=past,
        stopped=cannot_start_message(freeze) if freeze else "",
    )
    # Compared only where the evaluation depends on them: of many who approve the same
    # at once, each would else have to evaluate again after all those before.
    depends = past.same_by or reads_precedents(policy, approval.agent, item.tool)
    used = EvaluationInputs(one.uses, totals, known if depends else None)
    return CurrentEvaluation(policy_now, used, freeze)


async def evaluate_decision(
    store: Store,
    policy: Policy,
    approval: Approval,
    index: int,
    decision: Decision | None,
    *,
    beside: Beside = NOTHING,
) -> CurrentEvaluation | None:
    """Evaluate what would run by a decision on one call, as of now.

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
    return await evaluate_now(store, policy, approval, item, args, beside=beside)


async def _standing_now(
    store: Store, policy: Policy, approval: Approval, bounds: Bounds
) -> CurrentEvaluation:
    frozen = await store.freezes.all(
        store.keys_of_tenant(approval.tenant), approval.tenant
    )
    names = names_of(bounds.agent, bounds.tool)
    freeze = next((one for one in frozen if one.name in names), None)
    policy_now = evaluate_standing(
        policy,
        bounds,
        opened_by=approval.policy_digest,
        opened_ms=approval.created_at_ms,
    ).with_(stopped=cannot_start_message(freeze) if freeze else "")
    return CurrentEvaluation(policy_now, EvaluationInputs((), {}), freeze)


async def evaluate_waiting(
    store: Store, policy: Policy, approval: Approval
) -> dict[int, CurrentEvaluation]:
    """Evaluate each call that waits, by its index."""
    return {
        item.index: await evaluate_now(store, policy, approval, item, item.args)
        for item in approval.items
        if item.is_pending
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


def edits_add_up(policy: Policy, approval: Approval, partition: Partition) -> bool:
    """Return whether several edits of one gesture add up in one window.

    Each is evaluated beside what is reserved, so together they could pass a limit that
    the second of them would not pass after the first.
    """
    edits = [one for one in partition.values() if isinstance(one, Edit)]
    return len(edits) > 1 and counts_in_windows(policy, approval)


async def dead_ends(store: Store, policy: Policy, *, tenant: str) -> list[Item]:
    """Return waiting calls that nobody can approve by this policy.

    The policy changes while calls wait: people are replaced, roles get other names, a
    tool is forbidden. Such a call can still be rejected, and it ends by its own time;
    the operator of the gateway should know of it before.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    found: list[Item] = []
    async for loaded in ReviewQueue(store, tenant=tenant).waiting(MOST_LOOKED_AT):
        shown = await as_of_now(store, policy, loaded.approval)
        found += [item for item in shown.items if _is_stuck(shown, item)]
    return found


def _is_stuck(approval: Approval, item: Item) -> bool:
    if not item.is_pending:
        return False
    return item.tier is Tier.DENY or is_dead_end(approval, item, item.requirement)
