"""Short ids find approvals in lists of days, and only whole ids."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.store.connection.connection import number
from keyturn.gateway.store.keys import KEEP_MS, Keys
from tests.service.harness import ANA, ServiceHarness

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def keys(harness: ServiceHarness) -> Keys:
    return harness.keys


async def list_of(harness: ServiceHarness, keys: Keys, approval: str) -> str:
    created = (await harness.approval(f"{approval}.0")).created_at_ms
    base = keys.expiry.removesuffix("x")
    return f"{base}ids:{created // DAY_MS}:{short_id(approval)[0]}"


async def found(harness: ServiceHarness, keys: Keys, short: str) -> list[str]:
    return await harness.store.approvals.with_short_id(keys, short)


async def test_only_what_begins_with_it_is_found(
    harness: ServiceHarness, keys: Keys
) -> None:
    click, _ = await harness.refund()
    short = short_id(click.approval)
    ids = await list_of(harness, keys, click.approval)
    twin = f"ap_default_{short}{'0' * 24}"
    across = bytes.fromhex(f"{short[0]}{'1' * 23}{short}") + bytes.fromhex("2" * 32)
    await harness.command("APPEND", ids, across + keys.listed(twin))

    assert await found(harness, keys, short) == sorted([click.approval, twin])


async def test_it_is_known_as_long_as_its_approval(
    harness: ServiceHarness, keys: Keys
) -> None:
    click, _ = await harness.refund()
    ids = await list_of(harness, keys, click.approval)
    conn = harness.store.conn
    expires = (await harness.approval(f"{click.approval}.0")).expires_at_ms
    assert number(await conn.command("PEXPIRETIME", ids)) > expires + 2 * KEEP_MS

    # Long after, when the list has nearly ended, a person decides.
    await conn.command("PEXPIRE", ids, 1000)
    await harness.reviews.decide(click, Reject(reason="no"), ANA)

    ends = [
        number(await conn.command("PEXPIRETIME", key))
        for key in (keys.head(click.approval), ids)
    ]
    assert 0 < ends[0] < ends[1]
