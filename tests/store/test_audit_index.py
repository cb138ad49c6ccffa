"""What the audit log has of an approval is known by a process that has just started."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, ServiceHarness
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.store.audit_index import AuditIndex, Seen
from twokey.gateway.store.store import Store


@pytest.fixture
def house(store: Store, tmp_path: Path) -> AuditHarness:
    return AuditHarness(store, tmp_path)


def started(house: AuditHarness) -> AuditIndex:
    """Return the index of a process that has just started."""
    found = AuditIndex()
    found.folder = house.files.folder
    return found


async def decided(house: AuditHarness, thread: str, *, runs: bool) -> str:
    harness = ServiceHarness(house.store)
    click, claim = await harness.refund(thread=thread)
    await harness.reviews.decide(click, Approve(), ANA)
    if runs:
        await harness.agents.claim(claim)
    return click.approval


async def test_the_newest_rev_and_a_claim_are_known(house: AuditHarness) -> None:
    waits = await decided(house, "t1", runs=False)
    ran = await decided(house, "t2", runs=True)

    await house.writer.tick(is_last=True)

    for index in (house.store.audit_index, started(house)):
        assert index.newest(waits) == Seen(2, claimed=False)
        assert index.newest(ran) == Seen(3, claimed=True)
        assert index.newest("ap_s0_" + "0" * 32) == Seen()
        assert index.newest("junk") == Seen()


@pytest.mark.parametrize("how", ["lost", "junk", "older"])
async def test_an_index_that_is_lost_or_behind_is_built_again(
    house: AuditHarness, how: str
) -> None:
    first = await decided(house, "t1", runs=True)
    await house.writer.tick(is_last=True)
    path = house.files.folder / f"{house.keys.shard}.index.sqlite"
    kept = path.read_bytes()
    second = await decided(house, "t2", runs=True)
    await house.writer.tick(is_last=True)
    match how:
        case "lost":
            path.unlink()
        case "junk":
            path.write_bytes(b"no database" * 500)
        case _:
            path.write_bytes(kept)

    await house.another().tick()

    assert started(house).newest(first) == Seen(3, claimed=True)
    assert started(house).newest(second) == Seen(3, claimed=True)


async def test_what_somebody_else_wrote_moves_nothing(house: AuditHarness) -> None:
    approval = await decided(house, "t1", runs=False)
    event = f'{{"name":"item.executing","tenant":"default","approval":"{approval}"}}'
    seal = f"9.{'n' * 16}.{'c' * 22}"
    fields = ["e", event, "at", "1", "s", seal]
    await house.store.conn.command("XADD", house.keys.audit, "*", *fields)

    await house.writer.tick(is_last=True)

    assert house.store.audit_index.newest(approval) == Seen(2, claimed=False)


async def test_asking_takes_microseconds(house: AuditHarness) -> None:
    approval = await decided(house, "t1", runs=False)
    await house.writer.tick(is_last=True)
    index = house.store.audit_index

    start = time.thread_time()
    for _ in range(1000):
        index.newest(approval)
    assert time.thread_time() - start < 0.05
