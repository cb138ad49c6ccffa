"""A standing approval covers nothing that people rejected, or triage could not see."""

from __future__ import annotations

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.wire import VerdictKind
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.store import Store
from keyturn.gateway.triage.request import TriageRequest
from tests.service.harness import BEN, ServiceHarness
from tests.service.standing import ALLOWING, allowed, allowing, refund


async def test_a_call_that_people_rejected_before_is_not_covered(store: Store) -> None:
    harness = allowing(store)
    _, (verdict,) = await harness.submit(refund(30, "o9"), thread="monday")
    outcome = await harness.decide(verdict, Reject(reason="fraud"), BEN)
    assert outcome.kind == "decided"
    await allowed(harness)

    _, (again,) = await harness.submit(refund(30, "o9"), thread="tuesday")

    assert again.kind is VerdictKind.HOLD


class Broken:
    """Triage that would escalate every call, and fails for some arguments."""

    def __init__(self) -> None:
        self.asked = 0

    async def assess(self, request: TriageRequest) -> object:
        self.asked += 1
        raise RuntimeError("too many tokens")


async def test_a_call_that_triage_could_not_look_at_is_not_covered(
    store: Store,
) -> None:
    text = ALLOWING.replace(
        "    same_by: args.order\n", "    same_by: args.order\n    triage: {}\n"
    )
    assert text != ALLOWING
    harness = ServiceHarness(store, load_policy(text, "policy.yml"))
    triage = Broken()
    harness.agents = AgentService(store, lambda: harness.policy, triage=triage)
    await allowed(harness)

    _, (verdict,) = await harness.submit(
        refund(30, "o2", note="x" * 50_000), thread="next"
    )

    assert triage.asked
    assert verdict.kind is VerdictKind.HOLD
