"""Evaluate waiting calls by the current policy, and collect a policy's inputs.

One gesture may decide dozens of calls of a turn. The inputs of all their evaluations
are read together; the evaluation itself needs no store. The inputs of a call are its
precedents, its use of windows, and the state of its agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

from keyturn.gateway.approvals.changes import shown_item
from keyturn.gateway.approvals.decisions import Decision, Edit
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.precedents import (
    KINDS,
    MOST_KEPT,
    Past,
    Precedent,
    PrecedentKind,
    WindowTotal,
)
from keyturn.gateway.approvals.record import Approval, Context, Item
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.evaluate import (
    Facts,
    effect_of,
    evaluate,
    evaluate_question,
    reads_precedents,
)
from keyturn.gateway.policy.rules import Policy, WindowRule
from keyturn.gateway.policy.standing import evaluate_standing
from keyturn.gateway.policy.windows import window_uses
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service.submit.proposals import cannot_start_message, freeze_of
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.freezes import Freeze
from keyturn.gateway.store.limits.history import AgentLoad, Known, Use, held_in, use_of
from keyturn.gateway.store.records.atomic_write import EvaluationInputs
from keyturn.gateway.store.store import Store


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
        call: the call.
        effect: its effect; earlier calls with an equal effect are precedents.
        known: the precedents; None if they were not read.
        usage: its window usage.
        totals: totals of its windows, including its use once.
        held: current sums of windows, by window key.
        load: state of its agent.
    """

    policy: Policy
    call: WaitingCall
    effect: str
    known: Known | None
    usage: CallUsage
    totals: Mapping[str, int]
    held: Mapping[str, int]
    load: AgentLoad

    def evaluated(
        self, earlier: Sequence[Precedent] = (), added: Mapping[str, int] | None = None
    ) -> CurrentEvaluation:
        """Evaluate the call, also together with others of the same gesture.

        Totals include the use of this call once, and all other reservations.

        Args:
            earlier: calls with the same effect that the gesture approves before.
            added: by window key, what the other calls of the gesture add; see `adds`.
        """
        approval, item = self.call.approval, self.call.item
        used = EvaluationInputs((), {})
        policy_now: PolicyDecision
        if item.bounds is not None:
            policy_now = evaluate_standing(
                self.policy,
                item.bounds,
                opened_by=approval.policy_digest,
                opened_ms=approval.created_at_ms,
            )
        elif item.is_question:
            policy_now = evaluate_question(
                self.policy,
                agent=approval.agent,
                tool=item.tool,
                has_requester=approval.requester is not None,
            )
        else:
            policy_now, used = self._by_rules(earlier, added or {})
        freeze = freeze_of(self.load, self.call.agent, self.call.tool)
        if freeze and not item.is_question:
            policy_now = policy_now.with_(stopped=cannot_start_message(freeze))
        return CurrentEvaluation(policy_now, used, freeze)

    def adds(self, used: EvaluationInputs) -> Counter[str]:
        """Return what the call adds to windows, except earlier reservations."""
        # An edit may add an amount, and so may a newer policy.
        added = Counter[str]()
        for use in used.uses if self.held else ():
            added[use.window] = max(0, used.totals[use.name] - self.held[use.window])
        return added

    def _by_rules(
        self, earlier: Sequence[Precedent], added: Mapping[str, int]
    ) -> tuple[PolicyDecision, EvaluationInputs]:
        approval, item, policy = self.call.approval, self.call.item, self.policy
        totals = dict(self.totals)
        for use in self.usage.uses:
            totals[use.name] += added.get(use.window, 0)
        past = self._past(totals)
        past = past.with_(precedents=(*earlier, *past.precedents))
        facts = facts_of(
            self.load,
            self.usage,
            totals,
            requester=self.call.requester,
            requests_10m=self.load.requests_10m,
            past=past,
        )
        policy_now = evaluate(
            policy,
            agent=approval.agent,
            tool=item.tool,
            args=self.call.args,
            # The item has the agent's schema from the submission.
            declared_schema=None,
            facts=facts,
        ).with_(effect=self.effect, past=past)
        # Precedents are compared only if the evaluation depends on them. Otherwise many
        # approvals of the same effect at once would all have to be evaluated again.
        depends = past.same_by or reads_precedents(policy, approval.agent, item.tool)
        known = self.known if depends else None
        return policy_now, EvaluationInputs(self.usage.uses, totals, known)

    def _past(self, totals: Mapping[str, int]) -> Past:
        """Return the earlier calls that count in a new evaluation.

        An approved call keeps its place: calls that were approved later do not count
        against it.
        """
        policy, item = self.policy, self.call.item
        found = self.known.precedents if self.known else ()
        own = next((one for one in found if one.call == item.id), None)
        others = [one for one in found if one.call != item.id]
        if KINDS.get(item.state) is PrecedentKind.DONE:
            since_ms = own.since_ms if own else item.changed_at_ms
            place = (since_ms, item.id)
            others = [one for one in others if (one.since_ms, one.call) < place]
        return Past(
            precedents=tuple(others),
            totals=_shown_totals(policy, self.usage, totals),
            same_by=EffectiveRules(policy, item.ctx.agent, item.tool).first.same_by,
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
    effects = await aside(
        lambda: [_effect(policy, one) for one in calls], [one.args for one in calls]
    )
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
            effects=[effects[place] for place in of_agent],
            tools=[calls[place].tool for place in of_agent],
        )
    found: list[ReadCall] = []
    for n, call in enumerate(calls):
        load, effect = loads[call.agent], effects[n]
        known = load.precedents.get(keys.precedents(effect))
        found.append(
            ReadCall(policy, call, effect, known, usages[n], totals[n], held, load)
        )
    return found


def _usage(policy: Policy, keys: Keys, call: WaitingCall) -> CallUsage:
    item = call.item
    if item.bounds is not None:
        return CallUsage()
    requester = call.requester
    return usage_of(policy, keys, item.ctx, item.tool, call.args, requester=requester)


def _effect(policy: Policy, call: WaitingCall) -> str:
    item = call.item
    if item.bounds is not None:
        return ""
    return effect_of(policy, agent=call.approval.agent, tool=item.tool, args=call.args)


async def _totals(
    store: Store, keys: Keys, calls: Sequence[WaitingCall], usages: Sequence[CallUsage]
) -> tuple[list[dict[str, int]], dict[str, int]]:
    """Return each call's totals by name, and the current sums of windows by key."""
    # Only several calls can affect each other: a single call needs no sums.
    windows = sorted(
        {use.window for one in usages for use in one.uses if len(calls) > 1}
    )
    asked = [
        (keys.head(call.approval.id), call.item.index, usage.reserved)
        for call, usage in zip(calls, usages, strict=True)
    ]
    *found, held = await store.windows.totals_of_each([*asked, held_in(keys, windows)])
    totals = [
        totals_of_waiting(call.item, usage, one)
        for call, usage, one in zip(calls, usages, found, strict=True)
    ]
    return totals, dict(zip(windows, held, strict=True))


async def call_by(approval: Approval, item: Item, decision: Decision) -> WaitingCall:
    """Return the call that would run by a decision on an item.

    An edit whose arguments are not strict JSON is refused; it changes nothing here.
    """
    if isinstance(decision, Edit):
        with suppress(BadJson):
            # As they would run: 7.0 is 7, as in the call of an agent.
            args = await aside(partial(digest.parsed, decision.args), [decision.args])
            return WaitingCall(approval, item, cast("JsonObject", args))
    return WaitingCall(approval, item, item.args)


async def evaluate_now(
    store: Store, policy: Policy, call: WaitingCall
) -> CurrentEvaluation:
    """Evaluate one call by the policy, with the inputs of this moment."""
    [read] = await read_calls(store, policy, [call])
    return await aside(read.evaluated, [call.args])


async def as_of_now(store: Store, policy: Policy, approval: Approval) -> Approval:
    """Return an approval whose waiting calls have the current policy's requirements.

    For display only: nothing is written.
    """
    waiting = [item for item in approval.items if item.is_pending]
    calls = await aside(
        lambda: [WaitingCall(approval, item, item.args) for item in waiting],
        [item.action for item in waiting],
    )
    read = await read_calls(store, policy, calls)
    shown: list[Item] = []
    for item, one in zip(waiting, read, strict=True):
        evaluated = await aside(one.evaluated, [item.action])
        shown.append(shown_item(item, evaluated.policy_now))
    return approval.replacing(*shown)


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


USE_TAG = "keyturn/v1/use"


def _shown_totals(
    policy: Policy, usage: CallUsage, totals: Mapping[str, int]
) -> tuple[WindowTotal, ...]:
    found: list[WindowTotal] = []
    for use in usage.reserved:
        rule = policy.windows[use.name]
        if _is_hidden(policy, rule):
            continue
        found.append(
            WindowTotal(
                window=use.name,
                by=rule.by or "",
                others_micro=max(0, totals.get(use.name, use.micro) - use.micro),
                within_ms=use.within_ms,
                is_count=rule.sum is None,
            )
        )
    return tuple(found)


def _is_hidden(policy: Policy, window: WindowRule) -> bool:
    """Return whether a total could reveal an argument that the policy hides."""
    # The total of one call is its amount. That call may belong to another tool or
    # agent, whose rule hides this argument.
    redact = {
        hidden
        for place, rule in policy.tool_rules()
        if window.covers(str(place[-1]))
        for hidden in rule.redact
    }
    paths = (window.by, window.sum)
    return any(_overlap(path, hidden) for path in paths for hidden in redact)


def _overlap(path: str | None, hidden: str) -> bool:
    """Return whether two paths are equal or one is inside the other."""
    pairs = zip((path or "").split("."), hidden.split("."), strict=False)
    return bool(path) and all(a == b or "*" in {a, b} for a, b in pairs)


class CallUsage(Record):
    """The amounts that one call adds to its windows, and why some are unknown.

    Attributes:
        uses: released when the call does not run.
        requests: kept even if the call does not run.
        problems: sentences of the gateway; each one raises the tier.
    """

    uses: tuple[Use, ...] = ()
    requests: tuple[Use, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def reserved(self) -> tuple[Use, ...]:
        """Return all uses that are reserved while the call is evaluated."""
        return (*self.uses, *self.requests)

    def requests_before(self, totals: Mapping[str, int]) -> dict[str, int]:
        """Return the totals of windows of requests before this call, by window key."""
        return {one.window: totals[one.name] - one.micro for one in self.requests}


def usage_of(
    policy: Policy,
    keys: Keys,
    ctx: Context,
    tool: str,
    args: JsonObject,
    *,
    requester: str,
) -> CallUsage:
    """Return the window usage of a call with these arguments.

    The same call has the same uses each time, so it is never counted twice.
    """
    found = window_uses(
        policy, agent=ctx.agent, tool=tool, args=args, requester=requester
    )
    # Derived from the context, so that a repeated submission reuses the reservation.
    call = digest.tagged_hash(USE_TAG, digest.canonical({**ctx.as_dict()}))
    uses, requests = list[Use](), list[Use]()
    for one in found.uses:
        (requests if one.is_request else uses).append(
            use_of(
                keys.window(one.window, one.key),
                name=one.window,
                # 128 bits distinguish calls, and a window may have thousands.
                call=call.removeprefix("sha256:")[:32],
                micro=one.amount_micro,
                within_ms=one.within_ms,
            )
        )
    return CallUsage(
        uses=tuple(uses), requests=tuple(requests), problems=found.problems
    )


def totals_of_waiting(
    item: Item, usage: CallUsage, totals: Sequence[int]
) -> dict[str, int]:
    """Return the totals of a waiting call's windows, by name.

    Uses count with all other current reservations. Requests count only with earlier
    requests, because later ones do not change the place of this one. In a window that
    had no request of this call, all counted requests are earlier.

    Args:
        item: the call.
        usage: its window usage.
        totals: current totals of its windows, in the order of ``usage.reserved``.
    """
    names = (use.name for use in usage.reserved)
    found = dict(zip(names, totals, strict=True))
    for one in usage.requests:
        before = item.requests_before.get(one.window)
        if before is not None:
            found[one.name] = before + one.micro
    return found


def facts_of(
    load: AgentLoad,
    usage: CallUsage,
    totals: Mapping[str, int],
    *,
    requester: str,
    requests_10m: int,
    past: Past | None = None,
    ran: int = 0,
) -> Facts:
    """Return the facts for the evaluation of a call at this moment.

    Args:
        load: state of the agent.
        usage: the call's window usage.
        totals: totals of its windows, by name.
        requester: Slack id of the requester, or empty.
        requests_10m: requests of the agent to people in ten minutes, including this
            call.
        past: its precedents; None if no rule needs them.
        ran: number of earlier calls in its turn that run with the same effect.
    """
    now_ms, done, rejected = load.now_ms, 0, 0
    if past is not None:
        done = past.count(PrecedentKind.DONE, now_ms=now_ms)
        rejected = past.count(PrecedentKind.REJECTED, now_ms=now_ms)
        done = max(done, min(MOST_KEPT, done + ran))
    return Facts(
        now_ms=now_ms,
        windows=dict(totals),
        requester=requester,
        requests_10m=requests_10m,
        failures_1h=load.failures,
        rejections_in_row=load.rejections,
        problems=usage.problems,
        same_done_24h=done,
        same_rejected_24h=rejected,
    )
