"""It is known how many calls a signing key still has to verify."""

from __future__ import annotations

from tests.service.harness import ANA, ServiceHarness, claim_of
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.service.signed_by import calls_under
from twokey.gateway.store.store import Store
from twokey.gateway.trust.key_folder import Role


async def test_calls_that_wait_under_a_key_are_counted(store: Store) -> None:
    harness = ServiceHarness(store)
    assert store.keyring is not None
    key_id = store.keyring.signing(Role.BOT).public.id.hex()
    ref, verdicts = await harness.submit(
        ("process_refund", {"amount": 1}), ("process_refund", {"amount": 2})
    )

    async def counted(role: Role = Role.BOT, of: str = key_id) -> int:
        return await calls_under(store, "default", role, of)

    assert await counted() == 0
    for verdict in verdicts:
        await harness.reviews.decide(await harness.click(verdict), Approve(), ANA)
    assert await counted() == len(verdicts)
    assert await counted(of=f"{key_id}0") == await counted(Role.AUDIT) == 0
    assert await counted(Role.GATEWAY) == 0

    await harness.agents.claim(claim_of(ref, verdicts[0]))
    assert await counted(Role.GATEWAY) == 1
