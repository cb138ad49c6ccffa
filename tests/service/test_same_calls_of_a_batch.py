"""Of two calls with one effect that one gesture approves, the rules see the first."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    GestureDecided,
)
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.store import Store
from tests.service.harness import POLICY, ServiceHarness

NAMED = "process_refund: {tier: approve, same_by: args.order}"
ASKS = """process_refund:
    tier: approve
    same_by: args.order
    raise:
      - {to: escalate, when: recent.same_done_24h > 0, because: it ran today}"""
FIRST = "process_refund: {tier: approve}"
NEEDS = ASKS.replace("{to: escalate,", "{needs: two,")
TWO = "requirements:\n  two: {of: [support], approvals: 2}\n"


def policy(tool: str) -> str:
    return POLICY.replace(FIRST, tool).replace("requirements:\n", TWO)


@pytest.mark.parametrize(
    ("tool", "approved", "left_out"),
    [
        (ASKS, (0, 1), (2,)),
        # More people, and the same tier.
        (NEEDS, (0, 1), (2,)),
        (NAMED, (0, 1, 2), ()),
        (FIRST, (0, 1, 2), ()),
    ],
)
async def test_a_second_call_is_left_out_where_a_rule_asks_for_more(
    store: Store, tool: str, approved: tuple[int, ...], left_out: tuple[int, ...]
) -> None:
    harness = ServiceHarness(store, load_policy(policy(tool), "policy.yml"))
    refunds: list[tuple[str, JsonObject]] = [
        ("process_refund", {"order": order, "amount": n})
        for n, order in enumerate(["7", "8", "7"])
    ]
    _, verdicts = await harness.submit(*refunds)
    approval = await harness.approval(verdicts[0].item_id)

    outcome = await harness.decide_card(approval, dict.fromkeys(range(3), Approve()))

    assert isinstance(outcome, GestureDecided)
    assert (outcome.approved, outcome.left_out) == (approved, left_out)
    after = await harness.approval(approval.items[0].id)
    waiting = tuple(item.index for item in after.items if item.is_pending)
    assert waiting == left_out
