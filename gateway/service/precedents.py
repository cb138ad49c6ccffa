"""Collect a policy's inputs for a call: precedents, use of windows, other facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keyturn.gateway.approvals.precedents import (
    KINDS,
    MOST_KEPT,
    Past,
    PrecedentKind,
    WindowTotal,
)
from keyturn.gateway.approvals.record import Context, Item
from keyturn.gateway.approvals.repeating import args_hash
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.evaluate import effect_of, reads_precedents
from keyturn.gateway.policy.raise_rules import Facts
from keyturn.gateway.policy.rules import Policy, WindowRule
from keyturn.gateway.policy.standing import similar_rule
from keyturn.gateway.policy.windows import window_uses
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Turn, Verdict
from keyturn.gateway.store.agent_load import AgentLoad
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.precedents import AutoRun, Known, Row, row_of_auto_run
from keyturn.gateway.store.windows import Use, use_of

AUTO_RUN_TAG = "keyturn/v1/auto-run"


USE_TAG = "keyturn/v1/use"


def with_precedents(facts: Facts, past: Past) -> Facts:
    """Return facts with the counts of precedents."""
    now_ms = facts.now_ms
    return facts.with_(
        same_done_24h=past.count(PrecedentKind.DONE, now_ms=now_ms),
        same_rejected_24h=past.count(PrecedentKind.REJECTED, now_ms=now_ms),
    )


def past_of(
    policy: Policy,
    item: Item,
    known: Known | None,
    usage: CallUsage,
    totals: Mapping[str, int],
) -> Past:
    """Return the earlier calls that count in a new evaluation of an item.

    An approved call keeps its place: calls that were approved later do not count
    against it.

    Args:
        policy: the current policy.
        item: as in the record.
        known: the precedents of its effect.
        usage: the item's uses of windows.
        totals: totals of these windows, by name.
    """
    rule = EffectiveRules(policy, item.ctx.agent, item.tool)
    found = known.precedents if known else ()
    own = next((one for one in found if one.call == item.id), None)
    others = [one for one in found if one.call != item.id]
    if KINDS.get(item.state) is PrecedentKind.DONE:
        since_ms = own.since_ms if own else item.changed_at_ms
        place = (since_ms, item.id)
        others = [one for one in others if (one.since_ms, one.call) < place]
    return Past(
        precedents=tuple(others),
        totals=_totals(policy, usage, totals),
        same_by=rule.first.same_by,
    )


def _totals(
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


@dataclass(frozen=True)
class TurnPrecedents:
    """The effects of a turn's calls, and the precedents that its rules need.

    Attributes:
        policy: defines the effect of a call, and the rules that need precedents.
        turn: the turn.
        keys: keys of the tenant.
        effects: the effect of each call.
        effects_read: effects whose precedents are needed, by position of the call.
    """

    policy: Policy
    turn: Turn
    keys: Keys
    effects: Sequence[str]
    effects_read: Mapping[int, str]

    @classmethod
    def of(
        cls, policy: Policy, keys: Keys, turn: Turn, *, is_unread: bool = False
    ) -> TurnPrecedents:
        """Return the precedents to read for a turn: none if ``is_unread``."""
        agent = turn.ref.agent
        effects = [
            effect_of(
                policy,
                agent=agent,
                tool=call.tool,
                args=call.args,
                declared_schema=turn.schemas.get(call.tool),
            )
            for call in turn.calls
        ]
        if is_unread:
            return cls(policy, turn, keys, effects, {})
        effects_read = {
            position: effects[position]
            for position, call in enumerate(turn.calls)
            # Read only if a rule needs them, which is rare for auto-approved calls, or
            # if a standing approval could cover the call, but not a second one like it.
            if effects[position]
            and (
                reads_precedents(policy, agent, call.tool)
                or similar_rule(policy, agent, call.tool) is not None
            )
        }
        return cls(policy, turn, keys, effects, effects_read)

    def known(self, load: AgentLoad) -> list[Known]:
        """Return the precedents for the evaluation of the calls."""
        wanted = {self._key(effect) for effect in self.effects_read.values()}
        return [load.precedents[key] for key in sorted(wanted)]

    def facts(
        self, position: int, facts: Facts, load: AgentLoad, *, ran: int = 0
    ) -> Facts:
        """Return the facts of a call with the counts of its precedents.

        Args:
            position: position of the call.
            facts: the facts without these counts.
            load: the state of the agent as read.
            ran: number of earlier calls in the turn that run with the same effect.
        """
        effect = self.effects_read.get(position)
        if effect is None:
            return facts
        own = self._name(position)
        found = load.precedents[self._key(effect)].precedents
        past = Past(precedents=tuple(one for one in found if one.call != own))
        counted = with_precedents(facts, past)
        done = min(MOST_KEPT, counted.same_done_24h + ran)
        return counted.with_(same_done_24h=done)

    def has_precedent(
        self, position: int, load: AgentLoad, kind: PrecedentKind
    ) -> bool:
        """Return whether another call with the same effect is of this kind.

        Also True if the precedents of the effect were not read.
        """
        effect = self.effects_read.get(position)
        if effect is None:
            return True
        own, found = self._name(position), load.precedents[self._key(effect)].precedents
        return any(one.kind is kind for one in found if one.call != own)

    def auto_runs(self, verdicts: Sequence[Verdict]) -> list[Row]:
        """Return rows that record the calls without a record as precedents."""
        return [
            row_of_auto_run(self.keys, self.effects[position], self._auto_run(position))
            for position, verdict in enumerate(verdicts)
            if verdict.runs_unclaimed and self.effects[position]
        ]

    def _auto_run(self, position: int) -> AutoRun:
        call = self.turn.calls[position]
        return AutoRun(
            call=self._name(position),
            agent=self.turn.ref.agent,
            args_hash=args_hash(call.tool, call.args),
        )

    def _name(self, position: int) -> str:
        """Return a stable name for a call without a record."""
        # The members of a `Context`, see `proposals.context_of`.
        ctx: JsonObject = {"tenant": self.keys.tenant, **self.turn.ref.names}
        ctx["tool_call_id"] = self.turn.calls[position].tool_call_id
        found = digest.tagged_hash(AUTO_RUN_TAG, digest.canonical(ctx))
        return f"auto_{found.removeprefix('sha256:')[:32]}"

    def _key(self, effect: str) -> str:
        return self.keys.precedents(effect)


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
    declared_schema: JsonObject | None,
) -> CallUsage:
    """Return the window usage of a call with these arguments.

    The same call has the same uses each time, so it is never counted twice.
    """
    found = window_uses(
        policy,
        agent=ctx.agent,
        tool=tool,
        args=args,
        requester=requester,
        declared_schema=declared_schema,
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
) -> Facts:
    """Return the facts for the evaluation of a call at this moment.

    Args:
        load: state of the agent.
        usage: the call's window usage.
        totals: totals of its windows, by name.
        requester: Slack id of the requester, or empty.
        requests_10m: requests of the agent to people in ten minutes, including this
            call.
    """
    return Facts(
        now_ms=load.now_ms,
        windows=dict(totals),
        requester=requester,
        requests_10m=requests_10m,
        failures_1h=load.failures,
        rejections_in_row=load.rejections,
        problems=usage.problems,
    )
