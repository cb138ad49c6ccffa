"""An auto-approved call that failed counts among the failures of its agent."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Result, Tier
from keyturn.gateway.protocol.wire import CallEnd, TurnRef
from keyturn.gateway.store.store import Store
from tests.service.harness import POLICY, ServiceHarness

RULE = """look_up_order:
    tier: auto
    raise: [{to: approve, when: recent.failures_1h > 1, because: it keeps failing}]
"""
FAILED = Result(ok=False, summary="no such order 78291")


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    text = POLICY.replace("look_up_order: {tier: auto}\n", RULE)
    return ServiceHarness(store, load_policy(text, "policy.yml"))


def end_of(ref: TurnRef, call: str = "c0", **changes: object) -> CallEnd:
    end = CallEnd(ref=ref, tool="look_up_order", tool_call_id=call, result=FAILED)
    return end.with_(**changes)


async def failures(harness: ServiceHarness) -> int:
    key = harness.keys.failures("support")
    count = await harness.command("ZCARD", key)
    assert isinstance(count, int)
    return count


async def test_a_rule_sees_that_calls_keep_failing(harness: ServiceHarness) -> None:
    ref, _ = await harness.submit(("look_up_order", {}), ("look_up_order", {}))
    for call in ("c0", "c1"):
        await harness.agents.ended(end_of(ref, call))

    _, (verdict,) = await harness.submit(("look_up_order", {}))

    assert verdict.tier is Tier.APPROVE


async def test_a_failure_that_is_told_often_counts_once(
    harness: ServiceHarness,
) -> None:
    ref, _ = await harness.submit(("look_up_order", {}))

    await asyncio.gather(*(harness.agents.ended(end_of(ref)) for _ in range(8)))

    assert await failures(harness) == 1
    told = [
        event
        for event in await harness.audited()
        if event.name is EventName.CALL_FAILED
    ]
    assert len(told) == 1
    assert (told[0].tool, told[0].agent) == ("look_up_order", "support")
    assert "78291" not in told[0].model_dump_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"result": Result(ok=True)},
        {"tool": "process_refund"},
        {"tool_call_id": "c9"},
        {"ref": TurnRef(agent="support", thread="t1", message_id="never")},
        {"ref": TurnRef(agent="other", thread="t1", message_id="m0")},
    ],
)
async def test_what_our_record_does_not_know_counts_nothing(
    harness: ServiceHarness, changes: dict[str, object]
) -> None:
    ref, _ = await harness.submit(("look_up_order", {}))

    await harness.agents.ended(end_of(ref).with_(**changes))

    assert await failures(harness) == 0
