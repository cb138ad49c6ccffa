"""An auto-approved call does not run when the policy changed."""

from __future__ import annotations

import pytest

from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, Verdict, VerdictKind
from keyturn.gateway.service.submit.submitting import FORBIDDEN, NEEDS_A_PERSON
from tests.service.harness import POLICY, ServiceHarness

AUTO = "look_up_order: {tier: auto}"
WINDOWS = """
windows:
  looked: {tools: [look_up_order], by: call.agent, sum: 1, within: 1h}
"""
COUNTED = (
    "look_up_order: {tier: auto, raise: "
    "[{to: deny, when: windows.looked > 1, because: too many}]}"
)


def policy_with(look_up: str, more: str = "") -> str:
    assert AUTO in POLICY
    return POLICY.replace(AUTO, look_up) + more


async def cleared(harness: ServiceHarness) -> tuple[Turn, tuple[Verdict, ...]]:
    """Submit a turn with a call that runs and one that waits."""
    calls: list[tuple[str, JsonObject]] = [
        ("look_up_order", {"id": "1"}),
        ("process_refund", {"amount": 1}),
    ]
    ref, verdicts = await harness.submit(*calls)
    proposed = tuple(
        ProposedCall(tool=tool, args=args, tool_call_id=f"c{index}")
        for index, (tool, args) in enumerate(calls)
    )
    return Turn(ref=ref, calls=proposed), verdicts


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        ("{tier: deny}", FORBIDDEN),
        ("{tier: approve}", NEEDS_A_PERSON),
        ("{tier: escalate}", NEEDS_A_PERSON),
    ],
)
async def test_a_cleared_call_is_refused_by_a_stricter_policy(
    harness: ServiceHarness, now: str, reason: str
) -> None:
    turn, before = await cleared(harness)
    harness.policy = load_policy(policy_with(f"look_up_order: {now}"), "policy.yml")

    run, hold = await harness.agents.submit(turn)

    assert before[0].kind is VerdictKind.RUN
    assert (run.kind, run.reason) == (VerdictKind.DENY, reason)
    assert hold == before[1]


async def test_a_cleared_call_counts_once_in_the_windows_of_a_new_policy(
    harness: ServiceHarness,
) -> None:
    harness.policy = load_policy(policy_with(AUTO, WINDOWS), "policy.yml")
    turn, before = await cleared(harness)
    harness.policy = load_policy(policy_with(COUNTED, WINDOWS), "policy.yml")

    assert await harness.agents.submit(turn) == before


async def test_a_cleared_call_stays_cleared_by_the_same_or_a_looser_policy(
    harness: ServiceHarness,
) -> None:
    turn, before = await cleared(harness)
    assert await harness.agents.submit(turn) == before

    looser = POLICY.replace("process_refund: {tier: approve}", "pay: {tier: auto}")
    harness.policy = load_policy(looser, "policy.yml")

    assert await harness.agents.submit(turn) == before
