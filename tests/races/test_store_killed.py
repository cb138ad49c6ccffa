"""Kill -9 of Valkey in the middle of decisions: none that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Approve, Click, Decided, Stale
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.store import Store
from tests.levels import size
from tests.service.harness import ANA, ServiceHarness
from tests.store_secrets import SECRETS
from tests.streams import audit_entries

APPROVALS = size(deep=150, short=45)
KILLS = size(deep=10, short=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_killed_valkey_loses_no_decision(tmp_path: Path) -> None:
    folder = tmp_path / "valkey"
    acknowledged: set[str] = set()
    for round_ in range(KILLS):
        with EmbeddedEngine(folder) as engine:
            store = Store(engine.url, secrets=SECRETS)
            harness = ServiceHarness(store)
            clicks = [
                (await harness.refund(thread=f"t{round_}-{n}"))[0]
                for n in range(APPROVALS)
            ]
            assert engine.pid is not None
            await decide_until_killed(harness, clicks, acknowledged, engine.pid)
            await store.close()

    with EmbeddedEngine(folder) as engine:
        store = Store(engine.url, secrets=SECRETS)
        harness = ServiceHarness(store)
        states = [(await harness.item(f"{one}.0")).state for one in acknowledged]
        audit = await audit_entries(store.conn, store.keys_of_tenant("default"))
        jobs = await harness.jobs()
        await store.close()

    decided = [event.approval for event in audit if event.name == "item.authorized"]
    assert len(acknowledged) >= KILLS
    assert set(states) == {ItemState.AUTHORIZED}
    assert len(decided) == len(set(decided))
    assert jobs == len(decided)
    assert acknowledged <= set(decided)


async def decide_until_killed(
    harness: ServiceHarness, clicks: list[Click], acknowledged: set[str], pid: int
) -> None:
    """Decide all at once; kill the server when a third has been acknowledged."""
    is_killed = False

    async def decide(click: Click) -> None:
        nonlocal is_killed
        try:
            outcome = await harness.reviews.decide(click, Approve(), ANA)
        except StoreUnavailable:
            return
        assert isinstance(outcome, Decided | Stale)
        acknowledged.add(click.approval)
        if not is_killed and len(acknowledged) % (APPROVALS // 3) == 0:
            is_killed = True
            os.kill(pid, signal.SIGKILL)

    await asyncio.gather(*(decide(click) for click in clicks))
    assert is_killed
