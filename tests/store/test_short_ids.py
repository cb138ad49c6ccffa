"""Short ids find the approvals that have them, as long as these are kept."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.store.connection.connection import number
from keyturn.gateway.store.keys import KEEP_MS, Keys
from tests.service.harness import ANA, ServiceHarness


@pytest.fixture
def keys(harness: ServiceHarness) -> Keys:
    return harness.store.keys_of_tenant("default")


async def life(harness: ServiceHarness, key: str) -> int:
    return number(await harness.store.conn.command("PTTL", key))


async def test_approvals_with_the_same_short_id_are_found(
    harness: ServiceHarness, keys: Keys
) -> None:
    click, _ = await harness.refund()
    short = short_id(click.approval)
    twin = f"ap_default_{short}{'0' * 24}"
    await harness.store.conn.command("SADD", keys.short(short), twin, b"\xff")

    found = await harness.store.approvals.with_short_id(keys, short)

    assert found == sorted([click.approval, twin])


async def test_it_is_known_as_long_as_its_approval(
    harness: ServiceHarness, keys: Keys
) -> None:
    click, _ = await harness.refund()
    short = keys.short(short_id(click.approval))
    assert await life(harness, short) == -1

    await harness.reviews.decide(click, Reject(reason="no"), ANA)

    assert 0 < await life(harness, keys.head(click.approval)) <= KEEP_MS
    assert 0 < await life(harness, short) <= KEEP_MS


async def test_an_approval_that_ends_takes_it_from_no_other_one(
    harness: ServiceHarness, keys: Keys
) -> None:
    click, _ = await harness.refund()
    short = keys.short(short_id(click.approval))
    await harness.store.conn.command("SADD", short, "ap_default_twin")

    await harness.reviews.decide(click, Reject(reason="no"), ANA)

    assert await life(harness, short) > 3 * KEEP_MS
