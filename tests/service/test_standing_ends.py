"""What ends a standing approval, and what its calls may do then."""

from __future__ import annotations

from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Forbidden,
    Reject,
    Reviewer,
)
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.standing import (
    FROZEN,
    POLICY_CHANGED,
    REJECTED,
    RESTORED,
    REVOKED,
    ROLE_LOST,
)
from keyturn.gateway.config import PolicySource
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy_file import PolicyFile, followed
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Refused
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.recovery import Recovery
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.service.harness import (
    ANA,
    BEN,
    CHLOE,
    EVE,
    ServiceHarness,
    claim_of,
    person,
)
from tests.service.standing import (
    ALLOWING,
    allowed,
    allowing,
    chosen,
    refund,
    standing_now,
)
from tests.service.test_standing import is_covered

TOOL = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
SCOPES = [
    TOOL,
    FreezeScope(kind=ScopeKind.AGENT, name="support"),
    FreezeScope(kind=ScopeKind.TENANT),
]


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return allowing(store)


async def end_of(harness: ServiceHarness, standing: Approval) -> str:
    item = (await standing_now(harness, standing)).items[0]
    assert item.revoked
    assert item.revoked.is_final
    return item.revoked.reason


async def test_its_people_and_its_givers_revoke_it(harness: ServiceHarness) -> None:
    standing = await allowed(harness)

    refused = await harness.reviews.standing.revoke(standing.id, EVE)
    done = await harness.reviews.standing.revoke(standing.id, BEN)
    again = await harness.reviews.standing.revoke(standing.id, BEN)

    assert isinstance(refused, Forbidden)
    assert (done, again) == (True, False)
    assert await end_of(harness, standing) == REVOKED
    assert not await is_covered(harness, refund(5, "o1"))


async def test_what_it_opened_and_did_not_start_ends_with_a_revocation(
    harness: ServiceHarness,
) -> None:
    standing = await allowed(harness)
    ref, (verdict,) = await harness.submit(refund(5, "o1"), thread="next")
    await harness.reviews.standing.revoke(standing.id, ANA)

    reply = await harness.agents.claim(claim_of(ref, verdict))

    assert isinstance(reply, Refused)
    assert "standing approval" in reply.reason
    assert (await harness.item(verdict.item_id)).state is ItemState.LAPSED


@pytest.mark.parametrize("scope", SCOPES, ids=str)
async def test_a_freeze_ends_it_for_good(
    harness: ServiceHarness, scope: FreezeScope
) -> None:
    standing = await allowed(harness)
    await harness.reviews.freezes.freeze(scope, "T0/U0ANA", "stop")
    await harness.reviews.freezes.unfreeze(scope, "T0/U0ANA")

    assert await end_of(harness, standing) == FROZEN
    assert not await is_covered(harness, refund(5, "o1"))


async def test_a_freeze_that_was_cut_off_ends_it_when_it_is_lifted(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = await allowed(harness)
    service = harness.reviews.freezes

    async def cut_off(_scope: FreezeScope) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(service, "_end_standing", cut_off)
        with pytest.raises(RuntimeError):
            await service.freeze(TOOL, "T0/U0ANA", "stop")
    assert not await is_covered(harness, refund(5, "o1"))
    await service.unfreeze(TOOL, "T0/U0ANA")

    assert await end_of(harness, standing) == FROZEN
    assert not await is_covered(harness, refund(5, "o2"))


async def test_another_policy_ends_it_for_good(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    before = harness.policy
    harness.put_policy(("uses: 10", "uses: 11"), of=ALLOWING)
    assert not await is_covered(harness, refund(5, "o1"))
    harness.policy = before

    assert await end_of(harness, standing) == POLICY_CHANGED
    assert not await is_covered(harness, refund(5, "o2"))


@pytest.mark.parametrize(("amount", "who"), [(20, BEN), (499, CHLOE)])
async def test_a_rejection_of_a_similar_call_ends_it(
    harness: ServiceHarness, amount: int, who: Reviewer
) -> None:
    standing = await allowed(harness, what=chosen(each=10))
    _, (verdict,) = await harness.submit(refund(amount, "o1"), thread="next")
    await harness.decide(verdict, Reject(reason="no"), who)

    assert await end_of(harness, standing) == REJECTED


@pytest.mark.parametrize(
    ("ana", "ends"),
    [
        (ANA, False),
        (ANA.with_(account=AccountKind.UNKNOWN), False),
        (ANA.with_(account=AccountKind.DEACTIVATED), True),
        # Slack was not asked about her.
        (person("U0EVE"), False),
    ],
)
async def test_a_role_that_is_lost_ends_it(
    harness: ServiceHarness, ana: Reviewer, *, ends: bool
) -> None:
    standing = await allowed(harness)

    await harness.reviews.standing.confirm(standing, [ana], asked_ms=1)

    item = (await standing_now(harness, standing)).items[0]
    assert (item.state is ItemState.LAPSED) is ends
    if ends:
        assert await end_of(harness, standing) == ROLE_LOST


async def test_a_policy_that_was_put_back_at_once_ends_it(
    store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yml"
    file.write_text(ALLOWING)
    policy = PolicyFile(PolicySource(path=file))
    harness = ServiceHarness(store, policy())
    standing = await allowed(harness)
    other = ALLOWING.replace("uses: 10", "uses: 11")

    async with followed(policy, store, tenant="default", every_s=0.02):
        assert await is_covered(harness, refund(5, "o1"))
        file.write_text(other)
        await eventually(lambda: _is_in_force(policy, other))
        file.write_text(ALLOWING)
        await eventually(lambda: _is_in_force(policy, ALLOWING))

    assert await end_of(harness, standing) == POLICY_CHANGED
    assert not await is_covered(harness, refund(5, "o2"))


async def _is_in_force(policy: PolicyFile, text: str) -> bool:
    return policy().digest == load_policy(text, "policy.yml").digest


async def test_a_restored_store_ends_it(harness: ServiceHarness) -> None:
    standing = await allowed(harness)

    await Recovery(harness.store, Runners({}, InMemorySaver())).doubt_all()

    assert await end_of(harness, standing) == RESTORED
    assert not await is_covered(harness, refund(5, "o1"))
