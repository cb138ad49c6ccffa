"""Ask triage about the calls of one turn, and raise their tiers by its assessment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import TriageResult, approval_of
from keyturn.gateway.policy.raise_rules import Raise, is_strict
from keyturn.gateway.policy.rules import TriageRule
from keyturn.gateway.protocol.tiers import Tier
from keyturn.gateway.protocol.wire import Turn
from keyturn.gateway.service.proposals import EvaluatedCall, Proposal, Source
from keyturn.gateway.triage.asking import Triage, TriageResponse, ask
from keyturn.gateway.triage.assessment import apply_assessment
from keyturn.gateway.triage.request import request_of


@dataclass(frozen=True)
class TriagedCall:
    """What triage comes to for one call.

    Attributes:
        was: the tier without triage.
        result: what is kept of the assessment.
        failure: why there is no assessment; empty when there is one.
    """

    was: Tier
    result: TriageResult
    failure: str = ""

    @property
    def raises(self) -> tuple[Raise, ...]:
        """Return the raises that join those of the policy."""
        to = self.result.raised_to
        return (Raise(to=to, reason=_REASONS[to]),) if to else ()


class TurnTriage:
    """Triage of one turn: the turn may be evaluated again, a call is put to it once.

    Args:
        triage: None when there is none.
        turn: whose calls are put to it.
    """

    def __init__(self, triage: Triage | None, turn: Turn) -> None:
        self._triage = triage
        self._turn = turn
        self._responses: dict[int, tuple[TriageRule, TriageResponse]] = {}
        self._began_s: float | None = None

    async def assess(
        self, evaluated: Sequence[EvaluatedCall], *, now_ms: int
    ) -> Mapping[int, TriagedCall]:
        """Return what triage comes to, by the position of the call in the turn.

        All calls that the policy puts to triage are asked about at the same time.

        Args:
            evaluated: every call of the turn, evaluated without triage.
            now_ms: the store's clock.
        """
        # A turn may be evaluated many times (`_ATTEMPTS` in submitting.py); triage,
        # which costs time and money, is asked about a call once.
        new = [
            (position, one, one.evaluation.triage)
            for position, one in enumerate(evaluated)
            if one.evaluation.triage
            and position not in self._responses
            and _may_wait(one)
        ]
        responses = await asyncio.gather(
            *(self._ask(one, rule, now_ms=now_ms) for _, one, rule in new)
        )
        for (position, _, rule), response in zip(new, responses, strict=True):
            self._responses[position] = (rule, response)
        return {
            position: _triaged(evaluated[position].evaluation.tier, rule, response)
            for position, (rule, response) in self._responses.items()
        }

    async def _ask(
        self, one: EvaluatedCall, rule: TriageRule, *, now_ms: int
    ) -> TriageResponse:
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
    triaged: Mapping[int, TriagedCall], proposal: Proposal, source: Source
) -> Iterator[Event]:
    """Yield events on what triage raised and where it failed, without its rationale.

    The rationale may quote arguments, so it is kept with the call and nowhere else.
    """
    for position, one in sorted(triaged.items()):
        raised_to, verdict = one.result.raised_to, proposal.verdicts[position]
        if raised_to is None and not one.failure:
            continue
        facts = {"was": one.was.value, "score": str(one.result.score)}
        yield Event(
            name=EventName.TRIAGE_RAISED if raised_to else EventName.TRIAGE_FAILED,
            tenant=source.tenant,
            agent=source.turn.ref.agent,
            thread=source.turn.ref.thread,
            approval=approval_of(verdict.item_id)[0] if verdict.item_id else "",
            item=verdict.item_id,
            tool=verdict.tool,
            tier=raised_to or one.was,
            policy_digest=source.policy_digest,
            reason=one.failure,
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


def _triaged(was: Tier, rule: TriageRule, response: TriageResponse) -> TriagedCall:
    assessment = response.assessment
    if assessment is None:
        return TriagedCall(was, TriageResult(), response.failure or "")
    tier = apply_assessment(was, assessment, may_deny=rule.may_deny)
    # Kept only with a raise: the author of the arguments may have steered the text, and
    # without a raise it would speak for the call.
    if tier is was:
        return TriagedCall(was, TriageResult(score=assessment.score))
    result = TriageResult(
        raised_to=tier, score=assessment.score, rationale=assessment.rationale
    )
    return TriagedCall(was, result)
