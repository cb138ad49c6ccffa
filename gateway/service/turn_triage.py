"""Ask triage about the calls of one turn, and raise their tiers by its advice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Opinion, approval_of
from twokey.gateway.policy.raise_rules import Raise, is_strict
from twokey.gateway.policy.triage_rules import TriageRule
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.wire import Turn
from twokey.gateway.service.proposals import EvaluatedCall, Proposal, Source
from twokey.gateway.triage.advice import apply_advice
from twokey.gateway.triage.asking import Reply, Triage, ask
from twokey.gateway.triage.request import request_of


@dataclass(frozen=True)
class TriagedCall:
    """What triage comes to for one call.

    Attributes:
        was: the tier without triage.
        opinion: what is kept of the advice.
        silence: why there is no advice; empty when there is some.
    """

    was: Tier
    opinion: Opinion
    silence: str = ""

    @property
    def also(self) -> tuple[Raise, ...]:
        """Return the raises that join those of the policy."""
        to = self.opinion.raised_to
        return (Raise(to=to, reason=_REASONS[to]),) if to else ()


class TurnTriage:
    """Triage of one turn: the turn may be judged again, a call is put to it once.

    Args:
        triage: None when there is none.
        turn: whose calls are put to it.
    """

    def __init__(self, triage: Triage | None, turn: Turn) -> None:
        self._triage = triage
        self._turn = turn
        self._replies: dict[int, tuple[TriageRule, Reply]] = {}
        self._began_s: float | None = None

    async def advise(
        self, evaluated: Sequence[EvaluatedCall], *, now_ms: int
    ) -> Mapping[int, TriagedCall]:
        """Return what triage comes to, by the position of the call in the turn.

        All calls that the policy puts to triage are asked about at the same time.

        Args:
            evaluated: every call of the turn, judged without triage.
            now_ms: the store's clock.
        """
        # A turn may be judged many times (`_ATTEMPTS` in submitting.py); triage, which
        # costs time and money, is asked about a call once.
        new = [
            (position, one, one.evaluation.triage)
            for position, one in enumerate(evaluated)
            if one.evaluation.triage
            and position not in self._replies
            and _may_wait(one)
        ]
        replies = await asyncio.gather(
            *(self._ask(one, rule, now_ms=now_ms) for _, one, rule in new)
        )
        for (position, _, rule), reply in zip(new, replies, strict=True):
            self._replies[position] = (rule, reply)
        return {
            position: _advised(evaluated[position].evaluation.tier, rule, reply)
            for position, (rule, reply) in self._replies.items()
        }

    async def _ask(self, one: EvaluatedCall, rule: TriageRule, *, now_ms: int) -> Reply:
        request = request_of(
            one.evaluation,
            agent=self._turn.ref.agent,
            tool=one.call.tool,
            args=one.call.args,
            now_ms=now_ms,
        )
        return await ask(self._triage, request, rule.timeout - self._spent())

    def _spent(self) -> timedelta:
        """Return how long triage took already; a turn waits for it once."""
        now_s = asyncio.get_running_loop().time()
        # The first question starts the time for all: later ones get what is left of it.
        if self._began_s is None:
            self._began_s = now_s
        return timedelta(seconds=now_s - self._began_s)


def triage_events(
    advised: Mapping[int, TriagedCall], proposal: Proposal, source: Source
) -> Iterator[Event]:
    """Yield events on what triage raised and where it failed, without its rationale.

    The rationale may quote arguments, so it is kept with the call and nowhere else.
    """
    for position, one in sorted(advised.items()):
        raised_to, verdict = one.opinion.raised_to, proposal.verdicts[position]
        if raised_to is None and not one.silence:
            continue
        facts = {"was": one.was.value, "score": str(one.opinion.score)}
        yield Event(
            name=EventName.TRIAGE_RAISED if raised_to else EventName.TRIAGE_SILENT,
            tenant=source.tenant,
            agent=source.turn.ref.agent,
            thread=source.turn.ref.thread,
            approval=approval_of(verdict.item_id)[0] if verdict.item_id else "",
            item=verdict.item_id,
            tool=verdict.tool,
            tier=raised_to or one.was,
            policy_digest=source.policy_digest,
            reason=one.silence,
            data=facts if raised_to else {},
        )


_REASONS = {
    Tier.NOTIFY: "Raised to notify: triage, a model's opinion, asks for a notice.",
    Tier.APPROVE: "Raised to approve: triage, a model's opinion, asks for a person.",
    Tier.ESCALATE: "Raised to escalate: triage, a model's opinion, asks for more care.",
    Tier.DENY: "Raised to deny: triage, a model's opinion, sees a clear violation.",
}


def _may_wait(one: EvaluatedCall) -> bool:
    # What is refused anyway, or cannot be a document, is not worth a model's time.
    return not one.refusal and is_strict(one.call.args)


def _advised(was: Tier, rule: TriageRule, reply: Reply) -> TriagedCall:
    advice = reply.advice
    if advice is None:
        return TriagedCall(was, Opinion(), reply.silence or "")
    tier = apply_advice(was, advice, may_deny=rule.may_deny)
    # Kept only with a raise: the author of the arguments may have steered the text, and
    # without a raise it would speak for the call.
    if tier is was:
        return TriagedCall(was, Opinion(score=advice.score))
    opinion = Opinion(raised_to=tier, score=advice.score, rationale=advice.rationale)
    return TriagedCall(was, opinion)
