"""A 64-bit id reaches the tool digit by digit, through store, card, form and rules."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.cards.approval import card
from keyturn.gateway.approvals.decisions import Approve, Edit
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.wire import Claimed
from tests.bot.samples import frame
from tests.service.harness import ANA, POLICY, ServiceHarness, claim_of

ID, NEXT = 1234567890123456789, 1234567890123456788


@pytest.mark.parametrize("runs", [ID, NEXT])
async def test_what_runs_has_every_digit_that_was_approved(
    harness: ServiceHarness, runs: int
) -> None:
    ref, [verdict] = await harness.submit(("process_refund", {"id": ID}))
    click = await harness.click(verdict)
    decision = Approve() if runs == ID else Edit(args={"id": runs})
    shown = json.dumps(card(frame(await harness.approval(verdict.item_id))).blocks)

    await harness.reviews.decide(click, decision, ANA)
    reply = await harness.agents.claim(claim_of(ref, verdict))

    assert str(ID) in shown
    assert isinstance(reply, Claimed)
    assert digest.action_args(reply.action) == {"id": runs}
    assert f'"id":{runs}' in reply.action
    assert (await harness.item(verdict.item_id)).args == {"id": runs}


@pytest.mark.parametrize(("asked", "tier"), [(ID, Tier.DENY), (NEXT, Tier.APPROVE)])
async def test_a_rule_tells_two_ids_apart_that_a_double_does_not(
    harness: ServiceHarness, asked: int, tier: Tier
) -> None:
    rule = f"raise: [{{to: deny, when: args.id == {ID}, because: it is blocked}}]"
    text = POLICY.replace(
        "  process_refund: {tier: approve}",
        f"  process_refund: {{tier: approve, {rule}}}",
    )
    harness.policy = load_policy(text, "policy.yml")

    _, [verdict] = await harness.submit(("process_refund", {"id": asked}))

    assert float(ID) == float(NEXT)
    is_denied = verdict.kind == "deny"
    assert is_denied is (tier is Tier.DENY)
