"""A turn that was evaluated, and what must not change until it is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twokey.gateway.protocol.wire import Verdict, VerdictKind
from twokey.gateway.service import denials
from twokey.gateway.service.precedents import TurnPrecedents
from twokey.gateway.service.proposals import Proposal
from twokey.gateway.service.window_usage import CallUsage
from twokey.gateway.store.precedents import Known
from twokey.gateway.store.turn_opening import Preconditions
from twokey.gateway.store.windows import Use


@dataclass(frozen=True)
class EvaluatedTurn:
    """A turn, what its calls use, and what it came to.

    ``is_unread`` says that nothing was read of its agent.
    """

    same: TurnPrecedents
    known: Sequence[Known]
    usage: Sequence[CallUsage]
    proposal: Proposal
    now_ms: int = 0
    is_unread: bool = False

    def preconditions(self) -> Preconditions:
        """Return what must not change while the turn opens."""
        turn, verdicts = self.same.turn, self.proposal.verdicts
        if self.is_unread:
            return self._preconditions_unread()
        requests = [use for one in self.usage for use in one.requests]
        protect = self.same.policy.protect
        return Preconditions(
            tenant=self.same.tenant,
            names=denials.freeze_names(turn.ref.agent, self._open_tools()),
            waiting=protect.pending_per_agent,
            requests_10m=protect.requests_per_10m,
            held={
                verdict.item_id: one.uses
                for verdict, one in zip(verdicts, self.usage, strict=True)
                if verdict.item_id
            },
            counted=[*self._uses(lambda one: one.runs_unclaimed), *requests],
            refused=self._uses(lambda one: one.kind is VerdictKind.DENY),
            reserved=[use for one in self.usage for use in one.reserved],
            run_ref=turn.ref.run_ref,
            auto_runs=self.same.auto_runs(verdicts),
            known=self.known,
            standing=self.proposal.standing,
            now_ms=self.now_ms,
        )

    def _preconditions_unread(self) -> Preconditions:
        """Return those of a turn whose calls run, or are refused, and use nothing."""
        same, protect = self.same, self.same.policy.protect
        return Preconditions(
            tenant=same.tenant,
            names=denials.freeze_names(same.turn.ref.agent, self._open_tools()),
            waiting=protect.pending_per_agent,
            requests_10m=protect.requests_per_10m,
            run_ref=same.turn.ref.run_ref,
            auto_runs=same.auto_runs(self.proposal.verdicts),
            not_rejected=denials.wanted_of(same.turn.calls, ()).calls,
        )

    def _open_tools(self) -> tuple[str, ...]:
        verdicts = self.proposal.verdicts
        return tuple([one.tool for one in verdicts if one.kind is not VerdictKind.DENY])

    def _uses(self, of: Callable[[Verdict], bool]) -> list[Use]:
        pairs = zip(self.proposal.verdicts, self.usage, strict=True)
        return [use for verdict, one in pairs if of(verdict) for use in one.uses]
