"""The numbers of a store are those of its audit export."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from keyturn.cli.main import run
from keyturn.gateway.approvals.decisions import Approve, Edit, Reject, Respond
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.evidence import HIDDEN
from keyturn.gateway.approvals.quality_checks import SeededCard
from keyturn.gateway.audit_export import read_export
from keyturn.gateway.metrics.report import Metrics, Outcome, Selection, as_json
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.replay import Row, replay
from keyturn.gateway.policy.rules import SeededCall, SpotCheckRule
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.people.queue import PastDecisions
from keyturn.gateway.service.report import audit_reading
from keyturn.gateway.service.report.audit_reading import StatisticsService, exported
from keyturn.gateway.service.submit.quality_checks import seeded_approval
from keyturn.gateway.store.audit import log as audit_log
from tests.service.harness import ANA, BEN, CHLOE, POLICY, ServiceHarness
from tests.store_secrets import ENV


async def approved(harness: ServiceHarness) -> None:
    await harness.approved(1, thread="approved")


async def edited_by_one(harness: ServiceHarness) -> None:
    click, _ = await harness.refund(2, thread="edited")
    await harness.reviews.decide(click, Edit(args={"amount": 3}), ANA)


async def rejected(harness: ServiceHarness) -> None:
    click, _ = await harness.refund(4, thread="rejected")
    await harness.reviews.decide(click, Reject(reason="no"), ANA)


async def answered(harness: ServiceHarness) -> None:
    click, _ = await harness.refund(5, thread="answered")
    await harness.reviews.decide(click, Respond(message="Ask Ben."), ANA)


async def approved_by_two(harness: ServiceHarness) -> None:
    _, (verdict,) = await harness.submit(("wire_money", {"to": "x"}), thread="two")
    await harness.decide(verdict, Approve(), BEN)
    await harness.decide(verdict, Approve(), CHLOE)


async def expired(harness: ServiceHarness) -> None:
    click, _ = await harness.refund(6, thread="expired")
    await harness.overdue(click.approval)
    await harness.sweeper.sweep()


async def ran(harness: ServiceHarness) -> None:
    await harness.submit(("look_up_order", {"id": 7}), thread="ran")


async def denied(harness: ServiceHarness) -> None:
    await harness.submit(("drop_table", {}), thread="denied")


async def given_back(harness: ServiceHarness) -> None:
    """Claim a call, and release the claim: neither is a decision."""
    claim = await harness.approved(8, thread="given back")
    granted = await harness.granted(claim)
    await harness.agents.release(claim.item_id, granted.fence)


async def checked(harness: ServiceHarness) -> None:
    """Run an approved refund, and mark it as wrong by a colleague."""
    # Drawn by its salt, 99 of 100.
    rule = SpotCheckRule(share=99, of=("senior",))
    harness.policy = harness.policy.with_(spot_checks=rule)
    click, claim = await harness.refund(9, thread="checked")
    await harness.reviews.decide(click, Approve(), ANA)
    await harness.ran(claim)
    await harness.reviews.spot_checks.answer(click.approval, 0, CHLOE, is_right=False)
    harness.policy = harness.policy.with_(spot_checks=None)


async def seeded(harness: ServiceHarness) -> None:
    """Show a call with a mistake, and approve it as a reviewer."""
    call = SeededCall(tool="process_refund", args={}, defect="no order", agent="a")
    made = seeded_approval(harness.policy, call, "default", 1)
    assert made is not None
    card = SeededCard(shown=made, defect=call.defect)
    service = harness.reviews.seeded_defects
    await service.posted(card, "C0", "1.1")
    await service.answer(card, ANA, has_approved=True)
    await service.end()


ACTS: tuple[Callable[[ServiceHarness], Awaitable[None]], ...] = (
    approved,
    edited_by_one,
    rejected,
    answered,
    approved_by_two,
    expired,
    ran,
    denied,
    given_back,
    checked,
    seeded,
)


async def exported_facts(harness: ServiceHarness, tenant: str = "default") -> Metrics:
    """Return the metrics of the audit export, as another machine reads it."""
    rows = audit_reading.exported(harness.store, tenant)
    lines = [json.dumps(row) async for row in rows]
    metrics = Metrics()
    for event in read_export(lines, "audit.jsonl", Event):
        metrics.add(event)
    return metrics


async def test_each_call_is_counted_once_by_its_answer(harness: ServiceHarness) -> None:
    for act in ACTS:
        await act(harness)

    metrics = await StatisticsService(harness.store).metrics()

    assert metrics.total.calls == {
        Outcome.APPROVED: 4,
        Outcome.EDITED: 1,
        Outcome.REJECTED: 1,
        Outcome.ANSWERED: 1,
        Outcome.EXPIRED: 1,
        Outcome.AUTO: 1,
        Outcome.DENIED: 1,
    }
    assert metrics.total.waits.count == 7
    assert metrics.tiers["escalate"].calls == {Outcome.APPROVED: 1}
    assert metrics.tools["look_up_order"].autonomous.rate == 1.0


@pytest.mark.parametrize("seed", range(5))
async def test_export_and_live_agree(harness: ServiceHarness, seed: int) -> None:
    chosen = random.Random(seed)  # noqa: S311 - nothing secret
    live = harness.reviews.statistics
    await live.begin()
    for act in chosen.choices(ACTS, k=8):
        await act(harness)
        # Read in pieces, some of which are empty, and by two readers at once.
        looks = [live.look() for _ in range(chosen.randrange(3))]
        await asyncio.gather(*looks)

    kept = as_json(await live.look())

    assert kept == as_json(await exported_facts(harness))
    assert kept == as_json(await StatisticsService(harness.store).metrics())


async def test_a_returned_claim_is_no_past_decision(harness: ServiceHarness) -> None:
    await given_back(harness)

    past = [event async for event, _ in PastDecisions(harness.store).newest()]

    assert [event.actor for event in past] == ["T0/U0ANA"]


async def test_a_run_counts_when_it_ends(harness: ServiceHarness) -> None:
    conn, keys = harness.store.conn, harness.keys
    now_ms = await conn.now_ms("")
    for name, at_ms in (("run.started", now_ms - 5_000), ("run.finished", now_ms)):
        event = {"name": name, "tenant": "default", "agent": "a", "thread": "t"}
        body = json.dumps(event)
        await conn.command("XADD", keys.audit, f"{at_ms}-*", "e", body, "at", at_ms)
    statistics, ended = StatisticsService(harness.store), Selection(since_ms=now_ms)

    assert (await statistics.metrics(ended)).total.runs == 1
    assert (await statistics.metrics(ended, has_runs=False)).total.runs == 0


# The audit log is exported with the stored facts of each call; a replay reads it.


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
