"""Evaluate the calls of a turn, one after the other, by what was read before.

The agent's own code may give hints, and triage, a model, may raise a call's tier.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.evidence import shortened
from keyturn.gateway.approvals.record import TriageResult, approval_of
from keyturn.gateway.policy.evaluate import Evaluation, evaluate, evaluate_question
from keyturn.gateway.policy.raise_rules import Facts, Raise, is_strict
from keyturn.gateway.policy.rules import Policy, TriageRule
from keyturn.gateway.protocol.records import Tier, Verb
from keyturn.gateway.protocol.wire import CallHint, ProposedCall, Turn
from keyturn.gateway.service import denials, quality_checks
from keyturn.gateway.service.precedents import CallUsage, TurnPrecedents, facts_of
from keyturn.gateway.service.proposals import EvaluatedCall, Proposal, Source
from keyturn.gateway.store.agent_load import AgentLoad
from keyturn.gateway.triage.asking import Triage, TriageResponse, ask
from keyturn.gateway.triage.assessment import apply_assessment
from keyturn.gateway.triage.request import request_of

MAX_DESCRIPTION = 200
"""Longest description of an agent's that stands on a card; a longer one is cut."""

_DEFAULT = re.compile(
    r"\s*Tool execution requires approval\s*(\n\nTool: .*\nArgs: .*)?", re.DOTALL
)
"""LangChain's own description of a call, which the card already states."""


_REASONS = {
    Tier.NOTIFY: "Raised to notify: triage, a model's opinion, asks for a notice.",
    Tier.APPROVE: "Raised to approve: triage, a model's opinion, asks for a person.",
    Tier.ESCALATE: "Raised to escalate: triage, a model's opinion, asks for more care.",
    Tier.DENY: "Raised to deny: triage, a model's opinion, sees a clear violation.",
}


def call_facts(
    load: AgentLoad, usage: CallUsage, totals: Mapping[str, int], *, held: int
) -> Facts:
    """Return the facts of a call; ``held`` calls of its turn wait before it."""
    requests_10m = load.requests_10m + held + 1
    return facts_of(
        load, usage, totals, requester=requester_of(load), requests_10m=requests_10m
    )


def evaluated_calls(
    same: TurnPrecedents,
    load: AgentLoad,
    usage: Sequence[CallUsage],
    totals: Sequence[Mapping[str, int]],
    triaged: Mapping[int, TriagedCall],
    drawn: Collection[int] = (),
) -> list[EvaluatedCall]:
    """Evaluate the calls of a turn in their order.

    Args:
        same: the turn, and the effects of its calls.
        load: what was read of its agent.
        usage: of each call.
        totals: what the windows of each call come to.
        triaged: what triage thought of calls, by position.
        drawn: positions of the calls that a spot check was drawn of.
    """
    evaluated: list[EvaluatedCall] = []
    turn, policy, ran = same.turn, same.policy, Counter[str]()
    held = 0
    for position, call in enumerate(turn.calls):
        own, assessed = usage[position], triaged.get(position)
        facts = call_facts(load, own, totals[position], held=held)
        effect = same.effects[position]
        facts = same.facts(position, facts, load, ran=ran[effect])
        raises = [*(assessed.raises if assessed else ()), *_raised_if_invalid(call)]
        raises += [quality_checks.DRAWN] if position in drawn else []
        evaluation = evaluate_call(turn, policy, call, facts, raises)
        refusal = denials.refusal(load, policy, turn.ref, call)
        is_returned = not refusal and is_returned_unasked(policy, call)
        if is_returned:
            refusal = call.problem
        elif not refusal and evaluation.tier.needs_people:
            refusal = denials.over_limit(load, policy.protect, held)
            # Calls of one turn count against the limit together, and a refused one does
            # not.
            held += not refusal
        ran[effect] += not refusal and evaluation.tier.is_auto_approved
        triage_result = assessed.result if assessed else None
        before = own.requests_before(totals[position])
        evaluated.append(
            EvaluatedCall(
                call,
                evaluation,
                refusal,
                triage_result,
                before,
                is_returned=is_returned,
                effect=effect,
                is_drawn=position in drawn,
                has_no_opinion=bool(assessed and assessed.failure),
            )
        )
    return evaluated


def requester_of(load: AgentLoad) -> str:
    """Return the Slack id of who asked the agent; "" when nobody is known."""
    return load.thread.requester.user if load.thread.requester else ""


def is_returned_unasked(policy: Policy, call: ProposedCall) -> bool:
    """Return whether a call goes back to the model because it does not fit."""
    return bool(call.problem) and not policy.protect.ask_about_invalid_calls


def _raised_if_invalid(call: ProposedCall) -> Sequence[Raise]:
    """Never auto-approve a call that does not fit: nobody knows what it would do."""
    return (Raise(to=Tier.APPROVE, reason=denials.MISFIT),) if call.problem else ()


def evaluate_call(
    turn: Turn,
    policy: Policy,
    call: ProposedCall,
    facts: Facts,
    raises: Sequence[Raise] = (),
) -> Evaluation:
    """Evaluate one call of a turn with its hint; ``raises`` can only raise it."""
    if call.is_question:
        return evaluate_question(
            policy,
            agent=turn.ref.agent,
            tool=call.tool,
            has_requester=bool(facts.requester),
        )

    def evaluate_at(requested_tier: Tier | None) -> Evaluation:
        return evaluate(
            policy,
            agent=turn.ref.agent,
            tool=call.tool,
            args=call.args,
            declared_schema=turn.schemas.get(call.tool),
            facts=facts,
            requested_tier=requested_tier,
            raises=raises,
        )

    return apply_hint(evaluate_at, call.hint)


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


Evaluate = Callable[[Tier | None], Evaluation]
"""What policy says of one call, given the tier that its agent asks for."""


def apply_hint(evaluate: Evaluate, hint: CallHint | None) -> Evaluation:
    """Return policy's evaluation as a hint changes it: raised, narrowed, or as it was.

    An attacker who can forge a hint gains nothing. Only ``approve`` can be loosened, to
    ``auto``, only where policy says ``overridable``, and no further than its rules of
    ``raise`` let it. A reviewer's ``reject`` is never taken away. The description
    never stands in for the policy's, and is left out where the policy hides
    arguments, because it may spell them out.

    Args:
        evaluate: asks the policy about this call; pure, called once or twice.
        hint: of the agent's own code; None changes nothing.
    """
    evaluation = evaluate(None)
    if hint is None:
        return evaluation
    tier = _tier_by_hint(evaluation, hint)
    if tier is not None:
        # Time, people and channel depend on the tier, so the policy is evaluated again.
        evaluation = evaluate(tier)
    return evaluation.with_(
        allow=_narrowed(evaluation.allow, hint.allow),
        agent_description=_described(evaluation, hint.description),
    )


def _tier_by_hint(evaluation: Evaluation, hint: CallHint) -> Tier | None:
    """Return the tier to which a hint moves a call; None when it moves nothing."""
    if hint.hold is True and evaluation.tier.is_auto_approved:
        return Tier.APPROVE
    # Only `approve` can be loosened. A call that a rule raised to `escalate` must not
    # lose its review by a hint of the agent's own code.
    may_loosen = evaluation.overridable and evaluation.tier is Tier.APPROVE
    if hint.hold is False and may_loosen:
        return Tier.AUTO
    return None


def _narrowed(
    allow: tuple[Verb, ...], hinted: tuple[Verb, ...] | None
) -> tuple[Verb, ...]:
    if hinted is None:
        return allow
    # A card without any way to say no would leave people only to approve or to wait.
    kept = tuple(verb for verb in allow if verb in hinted or verb is Verb.REJECT)
    return kept or (Verb.REJECT,)


def _described(evaluation: Evaluation, text: str) -> str:
    # On one line: line breaks could imitate other parts of the card.
    line = " ".join(text.split())
    if evaluation.description or evaluation.redact or _DEFAULT.fullmatch(text):
        return ""
    return shortened(line, MAX_DESCRIPTION)
