"""What a call was decided by lets it start without being evaluated once more."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.service.harness import ANA, POLICY, ServiceHarness, claim_of
from tests.service.windowed import refund, windowed
from twokey.gateway.approvals.decisions import Approve, Decision, Edit
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.wire import (
    Claimed,
    ClaimRequest,
    Refused,
    TurnRef,
    Verdict,
)
from twokey.gateway.service import decided_by
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.store import Store

REFUND = "process_refund"
TOOL = "  process_refund: {tier: approve}\n"


@pytest.fixture
def evaluated(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return what is read of agents to evaluate their calls, from here on."""
    found, plain = list[object](), store.agent_load.load

    async def load(*given: Any, **named: Any) -> Any:
        found.append(named.get("wanted"))
        return await plain(*given, **named)

    monkeypatch.setattr(store.agent_load, "load", load)
    return found


async def approved(
    harness: ServiceHarness, decision: Decision | None = None
) -> ClaimRequest:
    """Return the claim of a refund that Ana decided."""
    click, claim = await harness.refund(20)
    await harness.reviews.decide(click, decision or Approve(), ANA)
    return claim


@pytest.mark.parametrize("decision", [Approve(), Edit(args={"amount": 5})])
async def test_a_call_that_was_just_decided_starts_without_another_evaluation(
    store: Store, evaluated: list[object], decision: Decision
) -> None:
    harness = ServiceHarness(store)
    claim = await approved(harness, decision)
    evaluated.clear()

    reply = await harness.agents.claim(claim)

    assert isinstance(reply, Claimed)
    assert evaluated == []


def _claim(submitted: tuple[TurnRef, tuple[Verdict, ...]]) -> ClaimRequest:
    ref, (verdict,) = submitted
    return claim_of(ref, verdict)


async def test_by_what_a_call_was_decided_is_kept_for_a_minute(
    store: Store, evaluated: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ServiceHarness(store)
    at_s = [100.0]
    monkeypatch.setattr(decided_by, "now_s", lambda: at_s[0])
    early, later, last = [
        await harness.submit((REFUND, {"amount": 20}), thread=f"t{number}")
        for number in range(3)
    ]
    for pause_s, (_, (verdict,)) in (
        (0.0, early),
        (decided_by.KEPT_S / 2, later),
        (decided_by.KEPT_S / 2, last),
    ):
        at_s[0] += pause_s
        await harness.reviews.decide(await harness.click(verdict), Approve(), ANA)
    evaluated.clear()

    assert isinstance(await harness.agents.claim(_claim(later)), Claimed)
    assert evaluated == []
    assert isinstance(await harness.agents.claim(_claim(early)), Claimed)
    assert evaluated != []


async def test_so_does_one_that_was_decided_as_it_was_shown(
    store: Store, evaluated: list[object]
) -> None:
    harness = ServiceHarness(store)
    click, claim = await harness.refund(20)
    assert await harness.reviews.read_as_of_now(click.approval)
    evaluated.clear()

    await harness.reviews.decide(click, Approve(), ANA)
    reply = await harness.agents.claim(claim)

    assert isinstance(reply, Claimed)
    assert evaluated == []


async def test_what_another_policy_was_asked_says_nothing(
    store: Store, evaluated: list[object]
) -> None:
    harness = ServiceHarness(store)
    claim = await approved(harness)
    denied = POLICY.replace(TOOL, TOOL.replace("approve", "deny"))
    harness.policy = load_policy(denied, "policy.yml")
    evaluated.clear()

    assert isinstance(await harness.agents.claim(claim), Refused)
    assert evaluated != []


async def test_a_freeze_since_then_stops_a_call(store: Store) -> None:
    harness = ServiceHarness(store)
    claim = await approved(harness)
    scope = FreezeScope(kind=ScopeKind.TOOL, name=REFUND)
    await harness.reviews.freezes.freeze(scope, "U0ANA", "stop")

    assert isinstance(await harness.agents.claim(claim), Refused)
    await harness.reviews.freezes.unfreeze(scope, "U0ANA")


async def test_what_depends_on_the_moment_is_asked_again(
    store: Store, evaluated: list[object]
) -> None:
    when = 'raise: [{to: escalate, when: "recent.failures_1h > 5", because: "odd"}]'
    policy = POLICY.replace(TOOL, TOOL.replace("}", f", {when}}}"))
    harness = ServiceHarness(store, load_policy(policy, "policy.yml"))
    claim = await approved(harness)
    evaluated.clear()

    assert isinstance(await harness.agents.claim(claim), Claimed)
    assert len(evaluated) == 1


async def test_what_other_calls_have_a_part_in_is_asked_again(
    store: Store, evaluated: list[object]
) -> None:
    harness = windowed(store)
    ref, (verdict,) = await harness.submit(refund(5))
    await harness.reviews.decide(await harness.click(verdict), Approve(), ANA)
    evaluated.clear()

    assert isinstance(await harness.agents.claim(claim_of(ref, verdict)), Claimed)
    assert len(evaluated) == 1


async def asked_ahead(harness: ServiceHarness, *item_ids: str) -> None:
    """Do as a gateway that did not decide, when it tells of the decision."""
    cast("Any", decided_by)._KEPT.pop(harness.store, None)
    harness.agents.ahead.begin(item_ids)
    await harness.agents.ahead.close()


async def test_a_call_that_was_asked_about_ahead_starts_without_another_evaluation(
    store: Store, evaluated: list[object]
) -> None:
    harness = ServiceHarness(store)
    claim = await approved(harness)
    await asked_ahead(harness, claim.item_id)
    evaluated.clear()

    reply = await harness.agents.claim(claim)

    assert isinstance(reply, Claimed)
    assert evaluated == []


async def test_a_freeze_stops_a_call_that_was_asked_about_ahead(store: Store) -> None:
    harness = ServiceHarness(store)
    claim = await approved(harness)
    await asked_ahead(harness, claim.item_id)
    scope = FreezeScope(kind=ScopeKind.TOOL, name=REFUND)
    await harness.reviews.freezes.freeze(scope, "U0ANA", "stop")

    assert isinstance(await harness.agents.claim(claim), Refused)
    await harness.reviews.freezes.unfreeze(scope, "U0ANA")


async def test_what_other_calls_have_a_part_in_is_not_kept_ahead(
    store: Store, evaluated: list[object]
) -> None:
    harness = windowed(store)
    ref, (verdict,) = await harness.submit(refund(5))
    await harness.reviews.decide(await harness.click(verdict), Approve(), ANA)
    await asked_ahead(harness, verdict.item_id)
    evaluated.clear()

    assert isinstance(await harness.agents.claim(claim_of(ref, verdict)), Claimed)
    assert len(evaluated) == 1


async def test_only_calls_that_may_start_are_asked_about_ahead(
    store: Store, evaluated: list[object]
) -> None:
    harness = ServiceHarness(store)
    _, waiting = await harness.refund(20)
    evaluated.clear()

    await asked_ahead(harness, waiting.item_id, f"ap_s0_{'0' * 32}.0", "no id of ours")

    assert evaluated == []


async def test_a_store_that_is_away_is_not_asked_ahead(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ServiceHarness(store)
    claim = await approved(harness)

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(store.agent_load, "load", away)
        await asked_ahead(harness, claim.item_id)

    assert isinstance(await harness.agents.claim(claim), Claimed)
