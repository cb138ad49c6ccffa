"""A doubt is reconciled by whom the call needs, and the executor's own word is kept."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Forbidden,
    Outcome,
    Reconcile,
    Reviewer,
    Voted,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import Finding, ItemState, Result
from keyturn.gateway.protocol.wire import (
    Claimed,
    ClaimRequest,
    Done,
)
from tests.service.harness import (
    ANA,
    BEN,
    CHLOE,
    ServiceHarness,
    claim_of,
)

PAID = Result(ok=True, summary="paid 899")
BROKE = Result(ok=False, summary="refused by the bank")


async def doubtful(
    harness: ServiceHarness, tool: str = "process_refund"
) -> tuple[ClaimRequest, int]:
    """Return the claim and the fence of a call whose owner fell silent."""
    ref, (verdict,) = await harness.submit((tool, {"amount": 899}))
    for who in (ANA, CHLOE):
        await harness.decide(verdict, Approve(), who)
    claim = claim_of(ref, verdict)
    granted = await harness.granted(claim)
    await harness.doubt(verdict.item_id)
    assert (await harness.item(verdict.item_id)).state is ItemState.IN_DOUBT
    return claim, granted.fence


async def say(
    harness: ServiceHarness,
    claim: ClaimRequest,
    finding: Finding,
    who: Reviewer,
    note: str = "",
) -> Outcome:
    return await harness.decide(
        claim.item_id, Reconcile(finding=finding, note=note), who
    )


@pytest.mark.parametrize("finding", Finding)
async def test_the_doubt_of_an_escalated_call_takes_the_people_of_the_call(
    harness: ServiceHarness, finding: Finding
) -> None:
    claim, _ = await doubtful(harness, "wire_money")

    first = await say(harness, claim, finding, ANA)
    again = await say(harness, claim, finding, ANA)
    without_senior = await say(harness, claim, finding, BEN)
    state = (await harness.item(claim.item_id)).state
    last = await say(harness, claim, finding, CHLOE)

    assert isinstance(first, Voted)
    assert (first.have, first.need) == (1, 2)
    assert isinstance(again, Forbidden)
    assert without_senior.kind == "voted"
    assert state is ItemState.IN_DOUBT
    assert last.kind == "decided"
    item = await harness.item(claim.item_id)
    assert item.finding is finding


async def test_two_who_found_different_things_reconcile_nothing(
    harness: ServiceHarness,
) -> None:
    claim, _ = await doubtful(harness, "wire_money")

    await say(harness, claim, Finding.EXECUTED, ANA)
    other = await say(harness, claim, Finding.SKIP, CHLOE)
    state = (await harness.item(claim.item_id)).state
    agreed = await say(harness, claim, Finding.SKIP, ANA)

    assert (other.kind, state) == ("voted", ItemState.IN_DOUBT)
    assert agreed.kind == "decided", "Ana may think again; her last word counts"
    assert (await harness.item(claim.item_id)).state is ItemState.FAILED


async def test_what_was_seen_of_one_attempt_says_nothing_of_the_next(
    harness: ServiceHarness,
) -> None:
    claim, _ = await doubtful(harness)
    old = await harness.click_on(claim.item_id)
    await say(harness, claim, Finding.RERUN, BEN)
    assert isinstance(await harness.agents.claim(claim.with_(owner="w2")), Claimed)
    await harness.doubt(claim.item_id)

    late = [
        await harness.reviews.decide(old, Reconcile(finding=finding), ANA)
        for finding in Finding
    ]

    assert [outcome.kind for outcome in late] == ["changed"] * len(late)
    assert (await harness.item(claim.item_id)).state is ItemState.IN_DOUBT
    assert (await say(harness, claim, Finding.SKIP, ANA)).kind == "decided"


@pytest.mark.parametrize(
    ("finding", "result", "state", "is_contradicted"),
    [
        (Finding.SKIP, PAID, ItemState.EXECUTED, True),
        (Finding.SKIP, BROKE, ItemState.FAILED, False),
        (Finding.EXECUTED, PAID, ItemState.EXECUTED, False),
        (Finding.EXECUTED, BROKE, ItemState.EXECUTED, True),
        (Finding.RERUN, PAID, ItemState.EXECUTED, True),
        (Finding.RERUN, BROKE, ItemState.FAILED, True),
    ],
)
async def test_what_the_executor_reports_after_people_reconciled_is_never_dropped(
    harness: ServiceHarness,
    finding: Finding,
    result: Result,
    state: ItemState,
    *,
    is_contradicted: bool,
) -> None:
    claim, fence = await doubtful(harness)
    await say(harness, claim, finding, ANA)

    await harness.agents.finish(claim.item_id, fence, result)
    await harness.agents.finish(claim.item_id, fence, result)

    item = await harness.item(claim.item_id)
    assert (item.state, item.late_result) == (state, result)
    assert item.is_contradicted is is_contradicted
    [event] = await harness.audited(EventName.ITEM_REPORTED)
    assert event.reason == ("executed" if result.ok else "failed")


async def test_a_report_beside_a_second_run_is_kept_and_changes_nothing_of_it(
    harness: ServiceHarness,
) -> None:
    claim, fence = await doubtful(harness)
    await say(harness, claim, Finding.RERUN, ANA)
    second = await harness.granted(claim.with_(owner="w2"))

    await harness.agents.finish(claim.item_id, fence, PAID)
    assert (await harness.item(claim.item_id)).state is ItemState.EXECUTING
    assert await harness.agents.finish(claim.item_id, second.fence, BROKE)

    item = await harness.item(claim.item_id)
    assert (item.state, item.result, item.late_result) == (
        ItemState.FAILED,
        BROKE,
        PAID,
    )
    assert item.is_contradicted


@pytest.mark.parametrize("finding", Finding)
async def test_a_note_reaches_the_agent_whatever_was_found(
    harness: ServiceHarness, finding: Finding
) -> None:
    claim, fence = await doubtful(harness)
    await say(harness, claim, finding, ANA, "see 4711")
    [outcome] = await harness.agents.outcomes(claim.ref)
    if finding is not Finding.RERUN:
        await harness.agents.finish(claim.item_id, fence, PAID)

    reply = await harness.agents.claim(claim.with_(owner="w2"))

    assert isinstance(reply, Claimed if finding is Finding.RERUN else Done)
    for told in (reply.reconciled, outcome.reconciled):
        assert told is not None
        assert (told.type, told.message) == (finding.value, "see 4711")
        assert told.by == ANA.person


async def test_a_late_report_is_told_in_its_own_run_and_names_its_attempt(
    harness: ServiceHarness,
) -> None:
    left, fence = await doubtful(harness)
    assert await harness.agents.late_reports(left.ref, [left.item_id]) == ()
    await say(harness, left, Finding.SKIP, ANA)
    assert await harness.agents.late_reports(left.ref, [left.item_id]) == ()
    await harness.agents.finish(left.item_id, fence, PAID)

    asked = [left.item_id, "junk", "ap_default_0.0"]
    [report] = await harness.agents.late_reports(left.ref, asked)
    other = left.ref.with_(thread="t2")

    assert (report.item_id, report.tool_call_id) == (left.item_id, left.tool_call_id)
    assert (report.ok, report.summary, report.is_apart) == (True, "paid 899", False)
    assert await harness.agents.late_reports(other, asked) == ()


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_report_about_an_earlier_attempt_is_apart_once_a_second_one_began(
    harness: ServiceHarness, *, has_begun: bool
) -> None:
    claim, fence = await doubtful(harness)
    await say(harness, claim, Finding.RERUN, ANA)
    if has_begun:
        await harness.agents.claim(claim.with_(owner="w2"))

    await harness.agents.finish(claim.item_id, fence, PAID)

    [report] = await harness.agents.late_reports(claim.ref, [claim.item_id])
    assert (report.ok, report.is_apart) == (True, has_begun)
