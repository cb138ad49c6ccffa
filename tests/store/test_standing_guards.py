"""What opens by a standing approval is compared with it in the step that opens it."""

from __future__ import annotations

import secrets

import pytest

from keyturn.gateway.approvals import executing
from keyturn.gateway.approvals.record import Approval, approval_of
from keyturn.gateway.approvals.standing import CHECKED_FOR_MS, used
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.store.connection.connection import number
from keyturn.gateway.store.records.approval_indexes import Listed
from keyturn.gateway.store.records.atomic_write import Loaded, Preconditions, Write
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness
from tests.service.standing import allowed, allowing, refund, standing_now


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return allowing(store)


async def opened(harness: ServiceHarness, standing: Approval) -> list[Listed] | None:
    """Use a standing approval once, as it was read."""
    after, _ = used(standing, "ap_default_x.0", 10**6, 1)
    run_ref = RunRef(agent="support", thread="t")
    return await harness.store.approvals.open_turn(
        harness.keys,
        f"sha256:{secrets.token_hex(32)}",
        (),
        verdicts=b"\n",
        events=(),
        preconditions=Preconditions(
            names=(),
            waiting=10,
            requests_10m=10,
            run_ref=run_ref,
            thread=("support", "t"),
            standing=(after,),
        ),
    )


async def field(
    harness: ServiceHarness, standing: Approval, name: str, value: int
) -> None:
    head = harness.keys.head(standing.id)
    await harness.command("HSET", head, name, value)
    # The used record is the read one: otherwise another seal would be noticed.
    assert await harness.store.approvals.load(standing.id)


async def test_a_use_is_written_with_what_it_opens(harness: ServiceHarness) -> None:
    standing = await allowed(harness)

    assert await opened(harness, standing) is not None

    after = await standing_now(harness, standing)
    assert [use.item for use in after.uses] == ["ap_default_x.0"]
    assert after.rev == standing.rev + 1


async def test_a_moved_record_opens_nothing(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    assert await opened(harness, standing) is not None

    assert await opened(harness, standing) is None

    assert len((await standing_now(harness, standing)).uses) == 1


async def test_what_is_over_opens_nothing(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    await field(harness, standing, "0:l", await harness.store.conn.now_ms("") - 1)

    assert await opened(harness, standing) is None


async def test_a_claim_overwrites_no_revocation(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    _, (verdict,) = await harness.submit(refund(5, "o1"), thread="next")
    approval_id, index = approval_of(verdict.item_id)
    read: list[ItemState] = []

    async def compute(loaded: Loaded) -> Write | ItemState:
        """Claim the call by the read record, before its standing approval ends."""
        found = await standing_now(harness, standing)
        read.append(found.items[0].state)
        if read[-1] is not ItemState.AUTHORIZED:
            return read[-1]
        await harness.reviews.standing.revoke(standing.id, ANA)
        approval = loaded.approval
        claim = executing.claim(
            approval, approval.items[index], owner="w", lease_ms=1, now_ms=loaded.now_ms
        )
        return Write(claim, standing=found)

    found = await harness.store.approvals.change(approval_id, compute)

    assert found is ItemState.LAPSED
    assert read == [ItemState.AUTHORIZED, ItemState.LAPSED]
    assert (await harness.item(verdict.item_id)).state is ItemState.AUTHORIZED


async def test_the_later_answer_of_slack_counts(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    now_ms = await harness.store.conn.now_ms("")

    for asked_ms in (now_ms, now_ms - 1):
        confirmed = await harness.store.standing.confirm(
            harness.keys, standing.id, asked_ms=asked_ms
        )
        assert confirmed

    head = harness.keys.head(standing.id)
    found = number(await harness.command("HGET", head, "checked"))
    assert found == now_ms


async def test_an_old_answer_of_slack_opens_nothing(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    now_ms = await harness.store.conn.now_ms("")
    await field(harness, standing, "0:t", now_ms - CHECKED_FOR_MS - 1)
    assert await opened(harness, standing) is None

    await field(harness, standing, "checked", now_ms)
    assert await opened(harness, standing) is not None
