"""The audit log is exported with the stored facts of each call; a replay reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from keyturn.cli.main import run
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.evidence import HIDDEN
from keyturn.gateway.audit_export import read_export
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.replay import Row, replay
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.report.audit_reading import exported
from keyturn.gateway.store.audit import log as audit_log
from tests.service.harness import ANA, POLICY, ServiceHarness
from tests.store_secrets import ENV

STRICTER = POLICY.replace(
    "process_refund: {tier: approve}",
    "process_refund: {raise: [{to: deny, when: args.amount > 800, because: much}]}",
)
HIDING = POLICY.replace(
    "process_refund: {tier: approve}", "process_refund: {redact: [args.card]}"
)


async def gathered(rows: AsyncGenerator[JsonObject]) -> list[JsonObject]:
    return [row async for row in rows]


async def a_day(harness: ServiceHarness) -> None:
    """Approve one refund, reject one, and run one look-up."""
    click, _ = await harness.refund(899, thread="t1")
    await harness.reviews.decide(click, Approve(), ANA)
    click, _ = await harness.refund(10, thread="t2")
    await harness.reviews.decide(click, Reject(reason="no"), ANA)
    await harness.submit(("look_up_order", {"id": 7}), thread="t3")


async def test_a_replay_reads_what_was_exported(harness: ServiceHarness) -> None:
    await a_day(harness)

    rows = await gathered(exported(harness.store))

    text = "\n".join(json.dumps(row) for row in rows)
    found = replay(
        load_policy(STRICTER, "p"), read_export(text.split("\n"), "audit.jsonl", Row)
    )
    assert [(one.was, one.now, one.is_complete) for one in found] == [
        (Tier.APPROVE, Tier.DENY, True),
        (Tier.APPROVE, Tier.APPROVE, True),
        (Tier.AUTO, Tier.AUTO, False),
    ]
    call = next(row["call"] for row in rows if "call" in row)
    assert call == {"args": {"amount": 899}, "requester": "U0DAN"}


async def test_an_export_hides_what_cards_hide(harness: ServiceHarness) -> None:
    harness.put_policy(of=HIDING)
    _, verdicts = await harness.submit(
        ("process_refund", {"amount": 1, "card": "canary-card"})
    )
    await harness.decide(verdicts[0], Approve())

    shown = await gathered(exported(harness.store))
    bare = await gathered(exported(harness.store, has_arguments=False))

    calls = [row["call"] for row in shown if "call" in row]
    assert {"args": {"amount": 1, "card": HIDDEN}, "requester": "U0DAN"} in calls
    assert "canary-card" not in json.dumps(shown)
    assert all("call" not in row for row in bare)
    assert len(bare) == len(shown)


async def test_nothing_of_another_tenant_is_exported(harness: ServiceHarness) -> None:
    await a_day(harness)

    assert await gathered(exported(harness.store, "other")) == []


async def test_a_long_log_comes_whole_in_order_and_within_its_times(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_PAGE", 2)
    await a_day(harness)

    rows = await gathered(exported(harness.store))
    at = [int(str(row["seq"]).partition("-")[0]) for row in rows]
    part = await gathered(exported(harness.store, since_ms=at[1], until_ms=at[-1]))

    assert len(rows) > 4
    assert at == sorted(at)
    assert len({str(row["seq"]) for row in rows}) == len(rows)
    wanted = [row for row, one in zip(rows, at, strict=True) if at[1] <= one < at[-1]]
    assert part == wanted


async def test_an_entry_that_nobody_can_read_is_reported_and_hides_no_other(
    harness: ServiceHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await a_day(harness)
    before = await gathered(exported(harness.store))
    audit = harness.keys.audit
    await harness.command("XADD", audit, "*", "e", "{}", "at", "1")
    await a_day(harness)

    rows = await gathered(exported(harness.store))

    assert rows[: len(before)] == before
    assert len(rows) >= 2 * len(before)
    assert "audit.corrupt seq=" in caplog.text


async def test_what_is_exported_steers_no_terminal(
    harness: ServiceHarness,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    odd = "a\x9b31m\u202eb é"
    _, (verdict,) = await harness.submit(("process_refund", {"note": odd}))
    await harness.decide(verdict, Approve())
    monkeypatch.chdir(tmp_path)
    env = {**ENV, "KEYTURN_REDIS_URL": harness.store.conn.url}

    await asyncio.to_thread(run, ["audit", "export"], env)

    out = capfd.readouterr().out
    rows = [json.loads(line) for line in out.splitlines()]
    assert out.isascii()
    assert odd in [row["call"]["args"]["note"] for row in rows if "call" in row]
