"""The gateway takes questions from the agent that people speak to, and no others."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import (
    Decided,
    Forbidden,
    Reject,
    Respond,
)
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.questions import ASK_USER, NOT_OUTERMOST
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from keyturn.gateway.store.runs.threads import ThreadFacts
from tests.service.harness import ANA, DAN, EVE, ServiceHarness, person

ARGS: JsonObject = {"questions": [{"question": "Which one?"}]}


async def ask(
    harness: ServiceHarness,
    args: JsonObject = ARGS,
    *,
    nested_in: RunRef | None = None,
    facts: ThreadFacts | None = None,
) -> Verdict:
    ref = TurnRef(agent="support", thread="t1", message_id="m1", nested_in=nested_in)
    known = facts or ThreadFacts(requester=DAN)
    await harness.store.threads.change(
        harness.keys, "support", "t1", lambda _: known, why="aside"
    )
    call = ProposedCall(tool=ASK_USER, args=args, tool_call_id="c1", is_question=True)
    [verdict] = await harness.agents.submit(Turn(ref=ref, calls=(call,)))
    return verdict


async def test_an_agent_inside_a_tool_asks_nobody(harness: ServiceHarness) -> None:
    lead = RunRef(agent="lead", thread="t0")

    verdict = await ask(harness, nested_in=lead)

    assert (verdict.kind, verdict.reason) == (VerdictKind.DENY, NOT_OUTERMOST)


@pytest.mark.parametrize("args", [{}, {"questions": []}, {"questions": "?"}])
async def test_what_is_no_set_of_questions_is_refused(
    harness: ServiceHarness, args: JsonObject
) -> None:
    verdict = await ask(harness, args)

    assert verdict.kind is VerdictKind.DENY
    assert "no question was asked" in verdict.reason


async def test_a_forgotten_requester_asks_for_no_second_person(
    harness: ServiceHarness,
) -> None:
    verdict = await ask(harness, facts=ThreadFacts(is_partial=True))
    click = await harness.click(verdict)

    assert isinstance(
        await harness.reviews.decide(click, Respond(message="it"), EVE), Forbidden
    )
    assert isinstance(
        await harness.reviews.decide(click, Respond(message="this"), ANA), Decided
    )


async def test_a_policy_without_people_leaves_the_answer_to_the_requester(
    harness: ServiceHarness,
) -> None:
    harness.policy = load_policy(
        "version: 1\ndefaults: {tier: deny, expires_in: 1h, channel: C0A}\n", "p.yml"
    )
    verdict = await ask(harness)
    click = await harness.click(verdict)

    refused = await harness.reviews.decide(click, Respond(message="it"), ANA)
    dan = person("U0DAN")
    answered = await harness.reviews.decide(click, Respond(message="this"), dan)

    assert isinstance(refused, Forbidden)
    assert "Only the requester can answer" in refused.reason
    assert isinstance(answered, Decided)


async def test_skipped_questions_do_not_pause_their_agent(
    harness: ServiceHarness,
) -> None:
    harness.policy = harness.policy.model_copy(
        update={
            "protect": harness.policy.protect.model_copy(
                update={"pause_after_rejections": 1}
            )
        }
    )
    verdict = await ask(harness)
    await harness.decide(verdict, Reject())

    _, [refund] = await harness.submit(("process_refund", {"amount": 1}))

    assert refund.kind is VerdictKind.HOLD
