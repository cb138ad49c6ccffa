"""Evaluate the calls of a turn, one after the other, by what was read before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from keyturn.gateway.policy.evaluate import Evaluation, evaluate, evaluate_question
from keyturn.gateway.policy.raise_rules import Facts, Raise
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.tiers import Tier
from keyturn.gateway.protocol.wire import ProposedCall, Turn
from keyturn.gateway.service import denials, spot_checks
from keyturn.gateway.service.hints import apply_hint
from keyturn.gateway.service.precedents import TurnPrecedents
from keyturn.gateway.service.proposals import EvaluatedCall
from keyturn.gateway.service.turn_triage import TriagedCall
from keyturn.gateway.service.window_usage import CallUsage, facts_of
from keyturn.gateway.store.agent_load import AgentLoad


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
        raises += [spot_checks.DRAWN] if position in drawn else []
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
