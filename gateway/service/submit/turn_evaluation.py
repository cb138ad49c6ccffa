"""Evaluate the calls of a turn in their order, from facts that were read before.

The agent's code may give hints, and triage, a model, may raise a call's tier.
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
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.evaluate import (
    Evaluation,
    Facts,
    Raise,
    evaluate,
    evaluate_question,
    is_strict,
)
from keyturn.gateway.policy.rules import Policy, TriageRule
from keyturn.gateway.protocol.records import Evidence, Tier, Verb
from keyturn.gateway.protocol.wire import CallHint, ProposedCall, Turn
from keyturn.gateway.service.submit import proposals, quality_checks
from keyturn.gateway.service.submit.call_evaluation import CallUsage, facts_of
from keyturn.gateway.store.limits.history import AgentLoad
from keyturn.gateway.triage.asking import Triage, TriageResponse, apply_assessment, ask
from keyturn.gateway.triage.request import request_of

MAX_DESCRIPTION = 200
"""Most characters of an agent's description on a card; a longer one is cut."""

_MOST_SOURCE = 1_000
"""Most characters of a text that an agent names as a source."""

_ADDRESS = re.compile(r"https://([a-z0-9.:-]+)(?:/[!-~]{0,300})?", re.ASCII)
_NO_HOST = "The address is not shown: link_hosts in the policy does not name its host."

_DEFAULT = re.compile(
    r"\s*Tool execution requires approval\s*(\n\nTool: .*\nArgs: .*)?", re.DOTALL
)
"""LangChain's own description of a call, which the card already states."""


def call_facts(
    same: proposals.TurnPrecedents,
    position: int,
    load: AgentLoad,
    usage: CallUsage,
    totals: Mapping[str, int],
    *,
    held: int = 0,
    ran: int = 0,
) -> Facts:
    """Return the facts of a call of a turn.

    Before it, ``held`` calls wait, and ``ran`` calls with the same effect run.
    """
    return facts_of(
        load,
        usage,
        totals,
        requester=requester_of(load),
        requests_10m=load.requests_10m + held + 1,
        past=same.past(position, load),
        ran=ran,
    )


def evaluated_calls(
    same: proposals.TurnPrecedents,
    load: AgentLoad,
    usage: Sequence[CallUsage],
    totals: Sequence[Mapping[str, int]],
    triaged: Mapping[int, TriagedCall],
    drawn: Collection[int] = (),
) -> list[proposals.EvaluatedCall]:
    """Evaluate the calls of a turn in their order.

    Args:
        same: the turn, and the effects of its calls.
        load: state of its agent.
        usage: window usage of each call.
        totals: totals of each call's windows, by name.
        triaged: assessments of calls by triage, by position.
        drawn: positions of the calls drawn for a spot check.
    """
    evaluated: list[proposals.EvaluatedCall] = []
    turn, policy, ran = same.turn, same.policy, Counter[str]()
    held = 0
    for position, call in enumerate(turn.calls):
        own, assessed = usage[position], triaged.get(position)
        effect, total = same.effects[position], totals[position]
        facts = call_facts(same, position, load, own, total, held=held, ran=ran[effect])
        raises = [*(assessed.raises if assessed else ())]
        if call.problem:  # its effect is unknown
            raises.append(Raise(to=Tier.APPROVE, reason=proposals.MISFIT))
        if position in drawn:
            raises.append(quality_checks.DRAWN)
        evaluation = evaluate_call(turn, policy, call, facts, raises)
        refusal = proposals.refusal_of(load, policy, turn.ref, call)
        is_returned = not refusal and is_returned_unasked(policy, call)
        if is_returned:
            refusal = call.problem
        elif not refusal and evaluation.tier.needs_people:
            refusal = proposals.over_limit(load, policy.protect, held)
            # All calls of a turn count against the limit, except refused ones.
            held += not refusal
        ran[effect] += not refusal and evaluation.tier.is_auto_approved
        evaluated.append(
            proposals.EvaluatedCall(
                call,
                evaluation,
                refusal,
                assessed.result if assessed else None,
                own.requests_before(total),
                is_returned=is_returned,
                effect=effect,
                is_drawn=position in drawn,
                has_no_opinion=bool(assessed and assessed.failure),
            )
        )
    return evaluated


def requester_of(load: AgentLoad) -> str:
    """Return the Slack id of the requester; "" when unknown."""
    return load.thread.requester.user if load.thread.requester else ""


def is_returned_unasked(policy: Policy, call: ProposedCall) -> bool:
    """Return whether a call goes back to the model because it does not fit."""
    return bool(call.problem) and not policy.protect.ask_about_invalid_calls


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

    evaluation = apply_hint(evaluate_at, call.hint)
    given = call.hint.evidence if call.hint else ()
    hosts = policy.defaults.link_hosts or ()
    return evaluation.with_(evidence=tuple(_shown(one, hosts) for one in given))


@dataclass(frozen=True)
class TriagedCall:
    """The result of triage for one call.

    Attributes:
        was: the tier without triage.
        result: the part of the assessment to keep.
        failure: why there is no assessment; empty when there is one.
    """

    was: Tier
    result: TriageResult
    failure: str = ""

    @property
    def raises(self) -> tuple[Raise, ...]:
        """Return the raises that join those of the policy."""
        to = self.result.raised_to
        if to is None:
            return ()
        reason = f"Raised to {to}: triage, a model's opinion, asks for more care."
        return (Raise(to=to, reason=reason),)


class TurnTriage:
    """Triage of one turn: it gets each call once, even if the turn is evaluated again.

    Args:
        triage: the triage model; None without one.
        turn: the turn.
    """

    def __init__(self, triage: Triage | None, turn: Turn) -> None:
        self._triage = triage
        self._turn = turn
        self._responses: dict[int, tuple[TriageRule, TriageResponse]] = {}
        self._began_s: float | None = None

    async def assess(
        self, evaluated: Sequence[proposals.EvaluatedCall], *, now_ms: int
    ) -> Mapping[int, TriagedCall]:
        """Return the results of triage, by the position of the call in the turn.

        Triage gets all calls that the policy selects at the same time.

        Args:
            evaluated: every call of the turn, evaluated without triage.
            now_ms: the store's clock.
        """
        # A turn may be evaluated many times (`_ATTEMPTS` in submitting.py). Triage
        # costs time and money, so it gets each call once.
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
        self, one: proposals.EvaluatedCall, rule: TriageRule, *, now_ms: int
    ) -> TriageResponse:
        request = request_of(
            one.evaluation,
            agent=self._turn.ref.agent,
            tool=one.call.tool,
            args=one.call.args,
            now_ms=now_ms,
        )
        now_s = asyncio.get_running_loop().time()
        # The first question starts the time for all; later ones get the rest of it.
        self._began_s = self._began_s or now_s
        left = rule.timeout - timedelta(seconds=now_s - self._began_s)
        return await ask(self._triage, request, left)


def triage_events(
    triaged: Mapping[int, TriagedCall],
    proposal: proposals.Proposal,
    source: proposals.Source,
) -> Iterator[Event]:
    """Yield events for the raises and failures of triage, without its rationale.

    The rationale may quote arguments, so only the call's record has it.
    """
    for position, one in sorted(triaged.items()):
        raised_to, verdict = one.result.raised_to, proposal.verdicts[position]
        if raised_to is None and not one.failure:
            continue
        facts = {"was": one.was.value, "score": str(one.result.score)}
        yield Event(
            name=EventName.TRIAGE_RAISED if raised_to else EventName.TRIAGE_FAILED,
            tenant=source.same.keys.tenant,
            agent=source.same.turn.ref.agent,
            thread=source.same.turn.ref.thread,
            approval=approval_of(verdict.item_id)[0] if verdict.item_id else "",
            item=verdict.item_id,
            tool=verdict.tool,
            tier=raised_to or one.was,
            policy_digest=source.same.policy.digest,
            reason=one.failure,
            data=facts if raised_to else {},
        )


def _may_wait(one: proposals.EvaluatedCall) -> bool:
    # Refused calls, and calls that cannot be a document, are not worth a model's time.
    return not one.refusal and is_strict(one.call.args)


def _triaged(was: Tier, rule: TriageRule, response: TriageResponse) -> TriagedCall:
    assessment = response.assessment
    if assessment is None:
        return TriagedCall(was, TriageResult(), response.failure or "")
    tier = apply_assessment(was, assessment, may_deny=rule.may_deny)
    # The rationale is kept only with a raise. The author of the arguments may have
    # steered the text, and without a raise it would argue for the call.
    result = TriageResult(score=assessment.score)
    if tier is not was:
        result = result.with_(raised_to=tier, rationale=assessment.rationale)
    return TriagedCall(was, result)


def apply_hint(
    evaluate: Callable[[Tier | None], Evaluation], hint: CallHint | None
) -> Evaluation:
    """Return the policy's evaluation with a hint applied: raised, narrowed or the same.

    An attacker who can forge a hint gains nothing. Only ``approve`` can be loosened, to
    ``auto``, only if the policy has ``overridable``, and only as far as its ``raise``
    rules allow. A hint never removes ``reject``. The description never replaces the
    policy's, and it is dropped if the policy hides arguments, because it may contain
    them.

    Args:
        evaluate: evaluates this call by the policy, given the tier that its agent
            requests; pure, called once or twice.
        hint: from the agent's code; None changes nothing.
    """
    evaluation = evaluate(None)
    if hint is None:
        return evaluation
    # Time, people and channel depend on the tier, so the policy is evaluated again.
    if hint.hold is True and evaluation.tier.is_auto_approved:
        evaluation = evaluate(Tier.APPROVE)
    # Only `approve` can be loosened: a hint of the agent's code must not remove the
    # review of a call that a rule raised to `escalate`.
    may_loosen = evaluation.overridable and evaluation.tier is Tier.APPROVE
    if hint.hold is False and may_loosen:
        evaluation = evaluate(Tier.AUTO)
    allow = evaluation.allow
    if hint.allow is not None:
        # Without `reject`, people could only approve or wait.
        kept = (one for one in allow if one in hint.allow or one is Verb.REJECT)
        allow = tuple(kept) or (Verb.REJECT,)
    described = _described(evaluation, hint.description)
    return evaluation.with_(allow=allow, agent_description=described)


def _shown(source: Evidence, hosts: Collection[str]) -> Evidence:
    """Return a source cut to its limits, with an address only on one of these hosts."""
    title = shortened(" ".join(source.title.split()), MAX_DESCRIPTION)
    found = _ADDRESS.fullmatch(source.url)
    if source.url and not (found and found[1] in hosts):
        return Evidence(title=title, text=_NO_HOST)
    return source.with_(title=title, text=shortened(source.text, _MOST_SOURCE))


def _described(evaluation: Evaluation, text: str) -> str:
    # On one line: line breaks could imitate other parts of the card.
    line = " ".join(text.split())
    if evaluation.description or evaluation.redact or _DEFAULT.fullmatch(text):
        return ""
    return shortened(line, MAX_DESCRIPTION)


# Recognise turns whose every call runs by the policy alone, and open them unread.
#
# The verdicts on such a turn depend neither on its arguments, nor on the time, nor on
# earlier calls. So nothing is read before it opens, which saves a round trip. A freeze,
# a pause, a rejection or an earlier submission of the turn would stop a call anyway.
# The step that opens the turn checks for them. If there is one, nothing is written, and
# the turn is evaluated like any other.


def always_auto(policy: Policy, turn: Turn) -> list[Evaluation] | None:
    """Return the evaluation of each call; None unless all of them always run."""
    agent = turn.ref.agent
    # The draw of a spot check differs each time.
    if policy.spot_checks is not None or not all(
        _is_plain(call) and _always_runs(policy, agent, call.tool)
        for call in turn.calls
    ):
        return None
    return [evaluate(policy, agent=agent, tool=it.tool, args={}) for it in turn.calls]


def _is_plain(call: ProposedCall) -> bool:
    """Return whether only the policy decides a call."""
    # The rest of a hint is about calls that people decide.
    is_held = call.hint is not None and call.hint.hold is True
    return bool(call.tool) and not (is_held or call.problem or call.is_question)


def _always_runs(policy: Policy, agent: str, tool: str) -> bool:
    """Return whether every call of a tool runs, whatever its arguments are."""
    rules = EffectiveRules(policy, agent, tool)
    tier, _ = rules.tier()
    return tier is Tier.AUTO and not (
        rules.raising()
        or rules.first.args_schema is not None
        or rules.triage(tier) is not None
        or any(window.covers(tool) for window in policy.windows.values())
    )
