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
    """Return what is known of earlier calls when an item is evaluated again.

    A call that is approved already keeps its place: those that were approved after it
    do not count against it.

    Args:
        policy: of now.
        item: as it stands in the record.
        known: the precedents of its effect.
        usage: what it uses of windows.
        totals: what they come to.
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
    """Return whether a total would tell of an argument that the policy hides."""
    # The total of one call is its amount. That call may be of another tool or agent,
    # which hides what the card at hand shows.
    redact = {
        hidden
        for place, rule in policy.tool_rules()
        if window.covers(str(place[-1]))
        for hidden in rule.redact
    }
    paths = (window.by, window.sum)
    return any(_overlap(path, hidden) for path in paths for hidden in redact)


def _overlap(path: str | None, hidden: str) -> bool:
    """Return whether one of two paths leads into the other or is it."""
    pairs = zip((path or "").split("."), hidden.split("."), strict=False)
    return bool(path) and all(a == b or "*" in {a, b} for a, b in pairs)


@dataclass(frozen=True)
class TurnPrecedents:
    """The effects of a turn's calls, and what rules may ask of earlier ones.

    Attributes:
        policy: that says which calls are the same, and what is asked.
        turn: whose calls they are.
        keys: of the tenant.
        effects: of each call.
        effects_read: by position, the effects of the calls whose rules ask for
            precedents.
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
        """Return those of a turn; ``is_unread`` when no rule asks for any."""
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
            # Read only where a rule asks: most auto-approved calls need no precedents.
            # Or where the same a second time is not covered by a standing approval.
            if effects[position]
            and (
                reads_precedents(policy, agent, call.tool)
                or similar_rule(policy, agent, call.tool) is not None
            )
        }
        return cls(policy, turn, keys, effects, effects_read)

    def known(self, load: AgentLoad) -> list[Known]:
        """Return the precedents that the calls are evaluated by."""
        wanted = {self._key(effect) for effect in self.effects_read.values()}
        return [load.precedents[key] for key in sorted(wanted)]

    def facts(
        self, position: int, facts: Facts, load: AgentLoad, *, ran: int = 0
    ) -> Facts:
        """Return the facts of a call with the counts of its precedents.

        Args:
            position: of the call.
            facts: without them.
            load: what was read.
            ran: how many calls with its effect come before it in the turn and run.
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
        """Return whether another call with the effect of this one is of a kind.

        True as well where nothing was read of its effect.
        """
        effect = self.effects_read.get(position)
        if effect is None:
            return True
        own, found = self._name(position), load.precedents[self._key(effect)].precedents
        return any(one.kind is kind for one in found if one.call != own)

    def auto_runs(self, verdicts: Sequence[Verdict]) -> list[Row]:
        """Return the precedents that the calls without a record are from now on."""
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
        """Return a name for a call without a record, the same for the same call."""
        # The members of a `Context`, see `proposals.context_of`.
        ctx: JsonObject = {"tenant": self.keys.tenant, **self.turn.ref.names}
        ctx["tool_call_id"] = self.turn.calls[position].tool_call_id
        found = digest.tagged_hash(AUTO_RUN_TAG, digest.canonical(ctx))
        return f"auto_{found.removeprefix('sha256:')[:32]}"

    def _key(self, effect: str) -> str:
        return self.keys.precedents(effect)


class CallUsage(Record):
    """What one call adds to its windows, and why a share is not known.

    Attributes:
        uses: given back when the call does not run.
        requests: kept, also when the call does not run.
        problems: sentences of ours; each one raises.
    """

    uses: tuple[Use, ...] = ()
    requests: tuple[Use, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def reserved(self) -> tuple[Use, ...]:
        """Return everything that is reserved while the call is evaluated."""
        return (*self.uses, *self.requests)

    def requests_before(self, totals: Mapping[str, int]) -> dict[str, int]:
        """Return what windows of requests held before this call, by window key."""
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
    """Return what a call with these arguments uses.

    The same call has the same uses each time, so that nothing counts it twice.
    """
    found = window_uses(
        policy,
        agent=ctx.agent,
        tool=tool,
        args=args,
        requester=requester,
        declared_schema=declared_schema,
    )
    # From where the call comes, so that the same call holds the same use again when it
    # is submitted again.
    call = digest.tagged_hash(USE_TAG, digest.canonical({**ctx.as_dict()}))
    uses, requests = list[Use](), list[Use]()
    for one in found.uses:
        (requests if one.is_request else uses).append(
            use_of(
                keys.window(one.window, one.key),
                name=one.window,
                # 128 bits are enough to tell calls apart, and a window may hold
                # thousands.
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
    """Return what the windows of a waiting call come to, by name.

    Uses count with everything else that is reserved now. Requests count with those
    that came before: a later one changes nothing about the place of this one. In a
    window that the call did not ask in, all that are counted now came before.

    Args:
        item: the call.
        usage: what it uses.
        totals: what its windows come to now, in the order of ``usage.reserved``.
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
    """Return what is known of a call's moment.

    Args:
        load: of the agent.
        usage: what the call uses.
        totals: what each of its windows comes to.
        requester: Slack id of who asked the agent, or empty.
        requests_10m: what the agent asked people for in ten minutes, this call
        included.
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
