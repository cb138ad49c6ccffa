"""A turn is put to triage once, and its opinion is joined with the policy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.gateway.policy.evaluate import Evaluation, evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Tier, join
from keyturn.gateway.protocol.wire import CallHint, ProposedCall, Turn, TurnRef
from keyturn.gateway.service.submit.proposals import EvaluatedCall
from keyturn.gateway.service.submit.turn_evaluation import TurnTriage, apply_hint
from keyturn.gateway.triage.request import TriageRequest

EVERY = "[auto, notify, approve, escalate]"
REF = TurnRef(agent="support", thread="t1", message_id="m1")
TIERS = st.sampled_from(Tier)
SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "raise_to": TIERS | st.none() | st.text(max_size=9),
        "score": st.integers() | st.floats() | st.none(),
        "rationale": st.text(max_size=400) | st.integers(),
    },
)


class Answering:
    """Triage that gives one answer, raises it, or never answers."""

    def __init__(self, answer: Any, *, is_hanging: bool = False) -> None:
        self.answer = answer
        self.is_hanging = is_hanging
        self.asked: list[str] = []

    async def assess(self, request: TriageRequest) -> object:
        self.asked.append(request.tool)
        if self.is_hanging:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def policy_of(listed: Tier, *, may_deny: bool = False, timeout: str = "30s") -> Policy:
    """Return a policy with one tool of this tier and triage for every call."""
    more = """
    overridable: true
    raise: [{to: notify, when: args.n > 1, because: more than one}]
"""
    return load_policy(
        f"""\
version: 1
defaults:
  needs: U0ANA
  triage: {{tiers: {EVERY}, timeout: {timeout}, may_deny: {str(may_deny).lower()}}}
tools:
  tool:
    tier: {listed}{"" if listed is Tier.DENY else more}
""",
        "p.yml",
    )


def evaluation_of(
    policy: Policy, call: ProposedCall, hint: CallHint | None, also: Any
) -> Evaluation:
    """Evaluate a call as submitting does, with the hint of the agent's own code."""

    def one(requested_tier: Tier | None) -> Evaluation:
        return evaluate(
            policy,
            agent="support",
            tool=call.tool,
            args=call.args,
            requested_tier=requested_tier,
            raises=also,
        )

    return apply_hint(one, hint)


@settings(deadline=None)  # each example loads a policy and runs a loop
@given(
    listed=TIERS,
    number=st.integers(0, 3),
    hold=st.none() | st.booleans(),
    answer=SHAPES | st.text(max_size=9) | st.just(ValueError("no")),
    may_deny=st.booleans(),
)
def test_no_answer_of_triage_ever_lowers_a_call(
    *, listed: Tier, number: int, hold: bool | None, answer: Any, may_deny: bool
) -> None:
    policy = policy_of(listed, may_deny=may_deny)
    hint = None if hold is None else CallHint(hold=hold)
    call = ProposedCall(tool="tool", args={"n": number}, tool_call_id="c1", hint=hint)
    alone = evaluation_of(policy, call, hint, ())
    turn_triage = TurnTriage(Answering(answer), Turn(ref=REF, calls=(call,)))

    triaged = asyncio.run(turn_triage.assess([EvaluatedCall(call, alone)], now_ms=0))
    found = triaged.get(0)
    evaluation = evaluation_of(policy, call, hint, found.raises if found else ())

    assert evaluation.tier.rank >= alone.tier.rank
    raised = found.result.raised_to if found else None
    assert evaluation.tier is join(alone.tier, raised or alone.tier)
    assert may_deny or evaluation.tier is not Tier.DENY or alone.tier is Tier.DENY
    assert raised is None or isinstance(answer, dict)


@pytest.mark.slow
async def test_a_turn_that_is_evaluated_again_waits_no_second_time() -> None:
    policy = policy_of(Tier.APPROVE, timeout="1s")
    calls = tuple(
        ProposedCall(tool=tool, args={}, tool_call_id=tool) for tool in ("tool", "late")
    )
    evaluated = [
        EvaluatedCall(call, evaluation_of(policy, call, None, ())) for call in calls
    ]
    triage = Answering(None, is_hanging=True)
    turn_triage = TurnTriage(triage, Turn(ref=REF, calls=calls))

    first = await turn_triage.assess([evaluated[0]], now_ms=0)
    again = await turn_triage.assess(evaluated, now_ms=0)

    assert triage.asked == ["tool"]
    assert {one.failure for one in (*first.values(), *again.values())} == {"timeout"}
    assert len(again) == 2


async def test_a_call_that_is_evaluated_again_keeps_its_first_assessment() -> None:
    call = ProposedCall(tool="tool", args={"n": 0}, tool_call_id="c1")
    evaluated = [
        EvaluatedCall(call, evaluation_of(policy_of(Tier.APPROVE), call, None, ()))
    ]
    triage = Answering({"raise_to": "escalate"})
    turn_triage = TurnTriage(triage, Turn(ref=REF, calls=(call,)))

    first = await turn_triage.assess(evaluated, now_ms=0)
    triage.answer = {"raise_to": "none", "score": 0}
    again = await turn_triage.assess(evaluated, now_ms=0)

    assert triage.asked == ["tool"]
    assert dict(again) == dict(first)
    assert again[0].result.raised_to is Tier.ESCALATE


@pytest.mark.parametrize("args", [{"n": float("nan")}, {"n": "\ud800"}])
async def test_what_is_no_strict_json_is_put_to_nobody(args: Any) -> None:
    call = ProposedCall(tool="other", args=args, tool_call_id="c1")
    evaluated = EvaluatedCall(
        call, evaluation_of(policy_of(Tier.APPROVE), call, None, ())
    )
    triage = Answering({"raise_to": "deny"})

    triaged = await TurnTriage(triage, Turn(ref=REF, calls=(call,))).assess(
        [evaluated], now_ms=0
    )

    assert (triage.asked, dict(triaged)) == ([], {})
