"""A write is not repeated if only the store's answer got lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.store.connection.connection import Argument, Reply
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness
from tests.store.wire import Scripted, through
from tests.store_secrets import SECRETS
from tests.streams import audit_entries


class Lossy:
    """A wire to the store that breaks before the next answer to pass."""

    def __init__(self) -> None:
        self.loses = False

    def pass_on(self, data: bytes) -> list[bytes]:
        is_lost, self.loses = self.loses, False
        return [b""] if is_lost else [data]


@pytest.fixture
def lossy() -> Lossy:
    return Lossy()


@pytest.fixture
async def harness(
    store: Store, lossy: Lossy, tmp_path: Path
) -> AsyncGenerator[ServiceHarness]:
    async with Scripted(tmp_path, through(store.conn.url, lossy.pass_on)) as wire:
        over = Store(wire.url, secrets=SECRETS, lease_ms=2000)
        yield ServiceHarness(over)
        await over.close()


@pytest.fixture
async def break_at_write(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch, lossy: Lossy
) -> None:
    """Lose the answer to the next change."""
    # One before it: otherwise the lost answer is "unknown script".
    click, _ = await harness.refund(1, thread="before")
    await harness.reviews.acknowledge(click.approval, ANA)
    plain = harness.store.conn.evalsha
    left = [1]

    async def evalsha(
        source: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        writes: bool = True,
    ) -> list[Reply]:
        if left and "\ncount_rejections({change}, now)" in source:
            left.pop()
            lossy.loses = True
        return await plain(source, keys, args, writes=writes)

    monkeypatch.setattr(harness.store.conn, "evalsha", evalsha)


async def test_more_time_is_given_once(
    harness: ServiceHarness, break_at_write: None
) -> None:
    click, _ = await harness.refund()
    before = await harness.approval(f"{click.approval}.0")

    result = await harness.reviews.extend(click.approval, ANA)

    after = await harness.approval(f"{click.approval}.0")
    assert isinstance(result, Change)
    assert result.approval == after
    assert after.expires_at_ms == before.expires_at_ms + before.ttl_ms // 2
    told = await audit_entries(
        harness.store.conn, harness.store.keys_of_tenant("default")
    )
    assert [one.name for one in told].count(EventName.APPROVAL_EXTENDED) == 1
