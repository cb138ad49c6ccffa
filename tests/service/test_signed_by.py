"""It is known how many calls a signing key still has to verify."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.protocol.records import Finding
from keyturn.gateway.service.run import proving
from keyturn.gateway.service.run.proving import calls_under
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Role
from tests.service.harness import ANA, CHLOE, ServiceHarness, claim_of
from tests.service.test_doubts import doubtful, say


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
        await harness.decide(verdict, Approve())
    assert await counted() == len(verdicts)
    assert await counted(of=f"{key_id}0") == await counted(Role.AUDIT) == 0
    assert await counted(Role.GATEWAY) == 0

    await harness.agents.claim(claim_of(ref, verdicts[0]))
    assert await counted(Role.GATEWAY) == 1
    assert await counted() == len(verdicts)


async def test_a_call_in_doubt_waits_until_people_end_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ServiceHarness(store)
    assert store.keyring is not None
    key_id = store.keyring.signing(Role.BOT).public.id.hex()

    async def counted() -> tuple[int, int]:
        return (
            await proving.calls_under(store, "default", Role.BOT, key_id),
            await proving.calls_under(store, "default", Role.GATEWAY, ""),
        )

    claim, _ = await doubtful(harness)
    assert await counted() == (1, 1)
    # People are reminded of it again and again; it is counted after each time.
    keys = store.keys_of_tenant("default")
    [approval_id] = await harness.opened()
    reminder = f"{approval_id} {TimerKind.DOUBT}"
    await store.conn.command("ZADD", keys.timers, "XX", 1, reminder)
    await harness.sweeper.sweep()
    assert not await store.timers.due(keys, 10)
    assert await counted() == (1, 1)
    # A receipt of its claim has ended by then.
    monkeypatch.setattr(proving, "_RECEIPT_MS", -60_000)
    assert await counted() == (1, 0)

    for who in (ANA, CHLOE):
        await say(harness, claim, Finding.EXECUTED, who)
    assert await counted() == (0, 0)
