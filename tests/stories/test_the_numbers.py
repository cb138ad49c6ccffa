"""A head of support reads how people decide, and which decisions a rule could make."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from keyturn.cli.main import run
from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reject
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness
from tests.store_secrets import ENV


async def test_a_day_s_numbers_are_read_from_the_store_and_from_an_export(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    harness = ServiceHarness(store)
    env = {**ENV, "KEYTURN_REDIS_URL": store.conn.url}

    async def typed(*words: str) -> str:
        assert await asyncio.to_thread(run, words, env) == 0
        return capfd.readouterr().out

    assert "No agent asked for such a call" in await typed("stats")

    # Three look-ups run alone. Of three refunds one is approved, one made smaller and
    # one rejected.
    for number in range(3):
        await harness.submit(("look_up_order", {"id": number}), thread=f"look {number}")
    decisions: list[Decision] = [
        Approve(),
        Edit(args={"amount": 5}),
        Reject(reason="paid already"),
    ]
    for number, decision in enumerate(decisions):
        click, _ = await harness.refund(899, thread=f"refund {number}")
        await harness.reviews.decide(click, decision, ANA)

    table = await typed("stats", "--since", "1d")
    assert "50 %  3 of 6 calls ran without a person" in table
    assert "67 %  2 of 3 decisions: 1 edited, 1 rejected" in table

    whole = json.loads(await typed("stats", "--json"))
    (tmp_path / "audit.jsonl").write_text(await typed("audit", "export"))
    other = json.loads(await typed("stats", "--json", "--audit", "audit.jsonl"))
    assert _but_period(other) == _but_period(whole)


def _but_period(found: dict[str, Any]) -> dict[str, Any]:
    # "The last 30 days" began a moment later.
    return {**found, "since": ""}
