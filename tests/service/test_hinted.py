"""An agent's hint counts from submit to execution, within its limits."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Approve, Decided, Edit
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.wire import (
    CallHint,
    Claimed,
    ProposedCall,
    Turn,
    TurnRef,
    VerdictKind,
)
from tests.service.harness import POLICY, ServiceHarness, claim_of

OPEN = "{tier: approve, overridable: true, exp"
LISTED = "  process_refund: {tier: approve}\n"
RUN = VerdictKind.RUN
LOOSE = POLICY.replace("{tier: approve}", "{tier: approve, overridable: true}")


def turn_of(tool: str, hint: CallHint | None, message_id: str = "m1") -> Turn:
    ref = TurnRef(agent="support", thread="t1", message_id=message_id)
    call = ProposedCall(tool=tool, args={"amount": 1}, tool_call_id="c0", hint=hint)
    return Turn(ref=ref, calls=(call,))


async def test_a_call_raised_by_the_agent_is_decided_and_executed_once(
    harness: ServiceHarness,
) -> None:
    turn = turn_of("look_up_order", CallHint(hold=True, description="Look"))
    (verdict,) = await harness.agents.submit(turn)
    item = await harness.item(verdict.item_id)

    outcome = await harness.decide(verdict, Approve())
    reply = await harness.agents.claim(claim_of(turn.ref, verdict))

    assert verdict.kind is VerdictKind.HOLD
    assert item.tier is Tier.APPROVE
    assert item.agent_description == "Look"
    assert isinstance(outcome, Decided)
    assert isinstance(reply, Claimed)


async def test_an_edit_of_a_call_raised_by_the_agent_keeps_the_tier(
    harness: ServiceHarness,
) -> None:
    turn = turn_of("look_up_order", CallHint(hold=True))
    (verdict,) = await harness.agents.submit(turn)

    await harness.decide(verdict, Edit(args={"amount": 2}, reason="x"))

    item = await harness.item(verdict.item_id)
    assert item.tier is Tier.APPROVE
    assert item.state is ItemState.AUTHORIZED


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        (POLICY, VerdictKind.HOLD),
        (LOOSE, VerdictKind.RUN),
        (POLICY.replace("{tier: approve, exp", OPEN), VerdictKind.HOLD),
        (POLICY.replace("{tier: approve, exp", OPEN).replace(LISTED, ""), RUN),
    ],
)
async def test_a_person_is_waived_only_where_policy_says_so(
    harness: ServiceHarness, policy: str, kind: VerdictKind
) -> None:
    harness.policy = load_policy(policy, "policy.yml")

    (verdict,) = await harness.agents.submit(
        turn_of("process_refund", CallHint(hold=False))
    )

    assert verdict.kind is kind


async def test_the_hint_of_the_first_submission_counts(harness: ServiceHarness) -> None:
    (first,) = await harness.agents.submit(
        turn_of("look_up_order", CallHint(hold=True))
    )

    (second,) = await harness.agents.submit(turn_of("look_up_order", None))

    assert second == first
    assert second.kind is VerdictKind.HOLD


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Tool execution requires approval", ""),
        (" Tool execution requires approval\n", ""),
        ("Tool execution requires approval\n\nTool: pay\nArgs: {'a': '\n'}", ""),
        (
            "Tool execution requires approval by Bo",
            "Tool execution requires approval by Bo",
        ),
        ("Pay Bo", "Pay Bo"),
    ],
)
async def test_the_default_description_of_langchain_is_no_word_of_the_agents(
    harness: ServiceHarness, text: str, shown: str
) -> None:
    turn = turn_of("look_up_order", CallHint(hold=True, description=text))
    (verdict,) = await harness.agents.submit(turn)

    assert (await harness.item(verdict.item_id)).agent_description == shown
