"""Evaluate calls by the current policy, from one reading of the store for all of them.

One gesture may decide dozens of calls of a turn. The inputs of all their evaluations
are read together; the evaluation itself needs no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from keyturn.gateway.approvals.decisions import Decision, Edit
from keyturn.gateway.approvals.permission import is_dead_end
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.precedents import Precedent
from keyturn.gateway.approvals.raising import shown_item
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.similar import Bounds
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.evaluate import (
    effect_of,
    evaluate,
    evaluate_question,
    reads_precedents,
)
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.policy.standing import evaluate_standing
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject, accept_object
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service.denials import cannot_start_message, freeze_of
from keyturn.gateway.service.precedents import (
    CallUsage,
    facts_of,
    past_of,
    totals_of_waiting,
    usage_of,
    with_precedents,
)
from keyturn.gateway.service.queue import ReviewQueue
from keyturn.gateway.store.agent_load import AgentLoad, Wanted
from keyturn.gateway.store.atomic_write import EvaluationInputs
from keyturn.gateway.store.freezes import Freeze
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import Store
from keyturn.gateway.store.windows import ItemUses, held_in

# Each takes separate readings, and this runs at each change of the policy.
MOST_LOOKED_AT = 1_000
"""Most approvals that are checked for dead ends, the soonest due first."""


@dataclass(frozen=True)
class Beside:
    """The effects of calls that the same gesture approves first on later ones.

    Attributes:
        precedents: these calls by their effect.
        micro: by window key, the amount they add to the reservations.
    """

    precedents: Mapping[str, Sequence[Precedent]] = field(
        default_factory=dict[str, Sequence[Precedent]]
    )
    micro: Mapping[str, int] = field(default_factory=dict[str, int])


NOTHING: Final = Beside()


@dataclass(frozen=True)
class CurrentEvaluation:
    """The evaluation of a call by the current policy, and the inputs it depends on.

    ``freeze`` is the freeze that stops the call, if any.
    """

    policy_now: PolicyDecision
    used: EvaluationInputs
    freeze: Freeze | None


@dataclass(frozen=True)
class WaitingCall:
    """A call of an approval with the arguments that it would run with."""

    approval: Approval
    item: Item
    args: JsonObject

    @property
    def agent(self) -> str:
        """Return the agent of the call, or of the calls a standing approval covers."""
        bounds = self.item.bounds
        return self.approval.agent if bounds is None else bounds.agent

    @property
    def tool(self) -> str:
        """Return the tool that would run."""
        bounds = self.item.bounds
        return self.item.tool if bounds is None else bounds.tool

    @property
    def requester(self) -> str:
        """Return the Slack id of the requester, or ""."""
        return self.approval.requester.user if self.approval.requester else ""


@dataclass(frozen=True)
class ReadCall:
    """A waiting call, and the inputs of its evaluation at one moment.

    Attributes:
        policy: the policy in force.
        keys: keys of the tenant of its run.
        call: the call.
        effect: its effect; earlier calls with an equal effect are precedents.
        usage: its window usage.
        totals: totals of its windows, including its use once.
        held: current sums of windows, by window key.
        load: state of its agent.
    """

    policy: Policy
    keys: Keys
    call: WaitingCall
    effect: str
    usage: CallUsage
    totals: Mapping[str, int]
    held: Mapping[str, int]
    load: AgentLoad

    def evaluated(self, beside: Beside = NOTHING) -> CurrentEvaluation:
        """Evaluate the call; ``beside`` has the effects of calls approved first.

        Totals include the use of this call once, and all other reservations.
        """
        approval, item, policy = self.call.approval, self.call.item, self.policy
        freeze = freeze_of(self.load, self.call.agent, self.call.tool)
        stopped = cannot_start_message(freeze) if freeze else ""
        if item.bounds is not None:
            standing = self._standing(item.bounds).with_(stopped=stopped)
            return CurrentEvaluation(standing, EvaluationInputs((), {}), freeze)
        if item.is_question:
            asked = evaluate_question(
                policy,
                agent=approval.agent,
                tool=item.tool,
                has_requester=approval.requester is not None,
            )
            return CurrentEvaluation(asked, EvaluationInputs((), {}), freeze)
        totals = dict(self.totals)
        for use in self.usage.uses:
            totals[use.name] += beside.micro.get(use.window, 0)
        known = self.load.precedents.get(self.keys.precedents(self.effect))
        past = past_of(policy, item, known, self.usage, totals)
        others = beside.precedents.get(self.effect, ())
        past = past.with_(precedents=(*others, *past.precedents))
        facts = facts_of(
            self.load,
            self.usage,
            totals,
            requester=self.call.requester,
            requests_10m=self.load.requests_10m,
        )
        policy_now = evaluate(
            policy,
            agent=approval.agent,
            tool=item.tool,
            args=self.call.args,
            # The item has the agent's schema from the submission.
            declared_schema=None,
            facts=with_precedents(facts, past),
        ).with_(effect=self.effect, past=past, stopped=stopped)
        # Precedents are compared only if the evaluation depends on them. Otherwise many
        # approvals of the same effect at once would all have to be evaluated again.
        depends = past.same_by or reads_precedents(policy, approval.agent, item.tool)
        used = EvaluationInputs(self.usage.uses, totals, known if depends else None)
        return CurrentEvaluation(policy_now, used, freeze)

    def _standing(self, bounds: Bounds) -> PolicyDecision:
        return evaluate_standing(
            self.policy,
            bounds,
            opened_by=self.call.approval.policy_digest,
            opened_ms=self.call.approval.created_at_ms,
        )


async def read_calls(
    store: Store, policy: Policy, calls: Sequence[WaitingCall]
) -> list[ReadCall]:
    """Read the inputs of the evaluations of calls of one tenant.

    The inputs of one agent's calls are from one moment, and so are all window totals.
    """
    if not calls:
        return []
    tenant = calls[0].approval.tenant
    # The calls of one gesture belong to one run, or share a card and thus an agent.
    keys = store.keys_of_tenant(tenant)
    effects = await aside(partial(_effects, policy, calls), [one.args for one in calls])
    usages = [_usage(policy, keys, one) for one in calls]
    totals, held = await _totals(store, keys, calls, usages)
    loads: dict[str, AgentLoad] = {}
    for first in calls:
        agent = first.agent
        if agent in loads:
            continue
        of_agent = [place for place, one in enumerate(calls) if one.agent == agent]
        loads[agent] = await store.agent_load.load(
            keys,
            agent,
            first.approval.thread,
            first.approval.run_ref,
            turn_key=first.approval.message_id,
            wanted=Wanted(
                effects=[effects[place] for place in of_agent],
                tools=[calls[place].tool for place in of_agent],
            ),
        )
    return [
        ReadCall(
            policy,
            keys,
            call,
            effects[n],
            usages[n],
            totals[n],
            held,
            loads[call.agent],
        )
        for n, call in enumerate(calls)
    ]


def _usage(policy: Policy, keys: Keys, call: WaitingCall) -> CallUsage:
    item = call.item
    if item.bounds is not None:
        return CallUsage()
    return usage_of(
        policy,
        keys,
        item.ctx,
        item.tool,
        call.args,
        requester=call.requester,
        # The pinned schema from the submission. Another schema could give the same
        # resource another key, and the use would be counted apart from its reservation.
        declared_schema=item.args_schema,
    )


def _effects(policy: Policy, calls: Sequence[WaitingCall]) -> list[str]:
    return [_effect(policy, one) for one in calls]


def _effect(policy: Policy, call: WaitingCall) -> str:
    item = call.item
    if item.bounds is not None:
        return ""
    return effect_of(
        policy,
        agent=call.approval.agent,
        tool=item.tool,
        args=call.args,
        declared_schema=item.args_schema,
    )


async def _totals(
    store: Store, keys: Keys, calls: Sequence[WaitingCall], usages: Sequence[CallUsage]
) -> tuple[list[dict[str, int]], dict[str, int]]:
    """Return each call's totals by name, and the current sums of windows by key."""
    # Only several calls can affect each other: a single call needs no sums.
    windows = sorted(
        {use.window for one in usages for use in one.uses if len(calls) > 1}
    )
    asked = [
        ItemUses(keys.head(call.approval.id), call.item.index, usage.reserved)
        for call, usage in zip(calls, usages, strict=True)
    ]
    *found, held = await store.windows.totals_of_each([*asked, held_in(keys, windows)])
    totals = [
        totals_of_waiting(call.item, usage, one)
        for call, usage, one in zip(calls, usages, found, strict=True)
    ]
    return totals, dict(zip(windows, held, strict=True))


def call_of(
    approval: Approval, index: int, decision: Decision | None
) -> WaitingCall | None:
    """Return the call that would run by a decision on one call of an approval.

    None without a decision, without such a call, or if the arguments are not strict
    JSON: then the decision is refused.
    """
    if decision is None or not 0 <= index < len(approval.items):
        return None
    item = approval.items[index]
    args = item.args
    if isinstance(decision, Edit):
        try:
            # The strict copy, because the edit is read the same way before it runs.
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
    """Evaluate the call that would run by a decision now; see `call_of`."""
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
    """Return an approval whose waiting calls have their evaluated requirements.

    For display only: nothing is written.
    """
    items = approval.items
    return approval.replacing(
        *(shown_item(items[i], one.policy_now) for i, one in evaluated.items())
    )


async def as_of_now(store: Store, policy: Policy, approval: Approval) -> Approval:
    """Return an approval whose waiting calls have the current policy's requirements."""
    return shown_as(approval, await evaluate_waiting(store, policy, approval))


def counts_in_windows(policy: Policy, approval: Approval) -> bool:
    """Return whether a window adds a waiting call's uses to those of other calls."""
    rules = policy.windows.values()
    waiting = (item for item in approval.items if item.is_pending)
    return any(rule.covers(item.tool) for item in waiting for rule in rules)


def depends_on_others(policy: Policy, approval: Approval) -> bool:
    """Return whether other calls may change the requirements of a waiting call."""
    waiting = (item for item in approval.items if item.is_pending)
    return counts_in_windows(policy, approval) or any(
        reads_precedents(policy, approval.agent, item.tool) for item in waiting
    )


async def dead_ends(store: Store, policy: Policy, *, tenant: str) -> list[Item]:
    """Return waiting calls without possible approvers under this policy.

    The policy changes while calls wait: people are replaced, roles are renamed, a tool
    is forbidden. Such a call can still be rejected, and it expires. The operator of the
    gateway should learn of it before that.

    Args:
        store: the store with the calls.
        policy: the policy in force.
        tenant: the tenant of the calls.

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
