"""A doubt is settled by whom the call needs, and the executor's own word is kept."""

from __future__ import annotations

import pytest

from tests.service.desk import ANA, BEN, CHLOE, Desk, claim_of, still_members
from twokey.gateway.approvals.decisions import (
    Approve,
    Forbidden,
    Outcome,
    Reconcile,
    Reviewer,
    Voted,
)
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.verbs import Finding
from twokey.gateway.protocol.wire import (
    RECONCILE_INTERRUPT,
    Claimed,
    ClaimRequest,
    Done,
)
from twokey.gateway.resume.answers import answers_for
from twokey.gateway.resume.runner import PendingInterrupt
from twokey.gateway.store.outbox import audit_entries
from twokey.gateway.store.store import Store

PAID = Result(ok=True, summary="paid 899")
BROKE = Result(ok=False, summary="refused by the bank")


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


async def doubtful(
    desk: Desk, tool: str = "process_refund"
) -> tuple[ClaimRequest, int]:
    """Return the claim and the fence of a call whose owner fell silent."""
    ref, (verdict,) = await desk.submit((tool, {"amount": 899}))
    for who in (ANA, CHLOE):
        click = await desk.click(verdict)
        await desk.reviews.decide(click, Approve(), who, voters=still_members)
    claim = claim_of(ref, verdict)
    granted = await desk.agents.claim(claim)
    assert isinstance(granted, Claimed)
    await desk.owner_dies(verdict.item_id)
    await desk.sweeper.sweep()
    assert (await desk.item(verdict.item_id)).state is ItemState.IN_DOUBT
    return claim, granted.fence


async def say(
    desk: Desk, claim: ClaimRequest, finding: Finding, who: Reviewer, note: str = ""
) -> Outcome:
    click = await desk.click_on(claim.item_id)
    decision = Reconcile(finding=finding, note=note)
    return await desk.reviews.decide(click, decision, who, voters=still_members)


async def audited(desk: Desk, name: EventName) -> list[Event]:
    keys = desk.store.keys_of_tenant("default")
    entries = await audit_entries(desk.store.conn, keys)
    return [entry for entry in entries if entry.name is name]


@pytest.mark.parametrize("finding", Finding)
async def test_the_doubt_of_an_escalated_call_takes_the_people_of_the_call(
    desk: Desk, finding: Finding
) -> None:
    claim, _ = await doubtful(desk, "wire_money")

    first = await say(desk, claim, finding, ANA)
    again = await say(desk, claim, finding, ANA)
    without_senior = await say(desk, claim, finding, BEN)
    state = (await desk.item(claim.item_id)).state
    last = await say(desk, claim, finding, CHLOE)

    assert isinstance(first, Voted)
    assert (first.have, first.need) == (1, 2)
    assert isinstance(again, Forbidden)
    assert without_senior.kind == "voted"
    assert state is ItemState.IN_DOUBT
    assert last.kind == "settled"
    item = await desk.item(claim.item_id)
    assert item.found is finding


async def test_two_who_found_different_things_settle_nothing(desk: Desk) -> None:
    claim, _ = await doubtful(desk, "wire_money")

    await say(desk, claim, Finding.EXECUTED, ANA)
    other = await say(desk, claim, Finding.SKIP, CHLOE)
    state = (await desk.item(claim.item_id)).state
    agreed = await say(desk, claim, Finding.SKIP, ANA)

    assert (other.kind, state) == ("voted", ItemState.IN_DOUBT)
    assert agreed.kind == "settled", "Ana may think again; her last word counts"
    assert (await desk.item(claim.item_id)).state is ItemState.FAILED


async def test_two_can_have_an_escalated_call_run_again(desk: Desk) -> None:
    claim, _ = await doubtful(desk, "wire_money")

    await say(desk, claim, Finding.RERUN, ANA)
    await say(desk, claim, Finding.RERUN, CHLOE)

    assert isinstance(await desk.agents.claim(claim.with_(owner="w2")), Claimed)


async def test_what_was_seen_of_one_attempt_says_nothing_of_the_next(
    desk: Desk,
) -> None:
    claim, _ = await doubtful(desk)
    old = await desk.click_on(claim.item_id)
    await say(desk, claim, Finding.RERUN, BEN)
    assert isinstance(await desk.agents.claim(claim.with_(owner="w2")), Claimed)
    await desk.owner_dies(claim.item_id)
    await desk.sweeper.sweep()

    late = [
        await desk.reviews.decide(old, Reconcile(finding=finding), ANA)
        for finding in Finding
    ]

    assert [outcome.kind for outcome in late] == ["changed"] * len(late)
    assert (await desk.item(claim.item_id)).state is ItemState.IN_DOUBT
    assert (await say(desk, claim, Finding.SKIP, ANA)).kind == "settled"


async def test_a_note_is_kept_audited_and_told_to_the_agent(desk: Desk) -> None:
    claim, _ = await doubtful(desk)
    note = "the bank has it under 4711"

    await say(desk, claim, Finding.EXECUTED, ANA, note)

    item = await desk.item(claim.item_id)
    [event] = await audited(desk, EventName.ITEM_RECONCILED)
    assert [one.note for one in item.observations] == [note]
    assert (event.reason, event.data["note"]) == ("executed", note)
    value = {
        "type": RECONCILE_INTERRUPT,
        "item_id": item.id,
        "action_hash": item.action_hash,
    }
    pending = [PendingInterrupt(id="i1", value=value, schema=None)]
    found = await answers_for(desk.store, "support", "t1", pending)
    assert found.ready["i1"]["message"] == note
    assert found.ready["i1"]["by"] == ANA.person.model_dump(mode="json")


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
async def test_what_the_executor_reports_after_people_settled_is_never_dropped(
    desk: Desk,
    finding: Finding,
    result: Result,
    state: ItemState,
    *,
    is_contradicted: bool,
) -> None:
    claim, fence = await doubtful(desk)
    await say(desk, claim, finding, ANA)

    await desk.agents.finish(claim.item_id, fence, result)
    await desk.agents.finish(claim.item_id, fence, result)

    item = await desk.item(claim.item_id)
    assert (item.state, item.late) == (state, result)
    assert item.is_contradicted is is_contradicted
    [event] = await audited(desk, EventName.ITEM_REPORTED)
    assert event.reason == ("executed" if result.ok else "failed")


async def test_the_truth_keeps_a_call_from_running_a_second_time(desk: Desk) -> None:
    claim, fence = await doubtful(desk)
    await say(desk, claim, Finding.RERUN, ANA)

    await desk.agents.finish(claim.item_id, fence, PAID)

    reply = await desk.agents.claim(claim.with_(owner="w2"))
    assert isinstance(reply, Done)
    assert (reply.result, reply.found) == (PAID, None)


async def test_a_report_beside_a_second_run_is_kept_and_changes_nothing_of_it(
    desk: Desk,
) -> None:
    claim, fence = await doubtful(desk)
    await say(desk, claim, Finding.RERUN, ANA)
    second = await desk.agents.claim(claim.with_(owner="w2"))
    assert isinstance(second, Claimed)

    await desk.agents.finish(claim.item_id, fence, PAID)
    assert (await desk.item(claim.item_id)).state is ItemState.EXECUTING
    assert await desk.agents.finish(claim.item_id, second.fence, BROKE)

    item = await desk.item(claim.item_id)
    assert (item.state, item.result, item.late) == (ItemState.FAILED, BROKE, PAID)
    assert item.is_contradicted


@pytest.mark.parametrize("finding", Finding)
async def test_a_note_reaches_the_agent_whatever_was_found(
    desk: Desk, finding: Finding
) -> None:
    claim, fence = await doubtful(desk)
    await say(desk, claim, finding, ANA, "see 4711")
    [outcome] = await desk.agents.outcomes(claim.ref)
    if finding is not Finding.RERUN:
        await desk.agents.finish(claim.item_id, fence, PAID)

    reply = await desk.agents.claim(claim.with_(owner="w2"))

    assert isinstance(reply, Claimed if finding is Finding.RERUN else Done)
    for told in (reply.settled, outcome.settled):
        assert told is not None
        assert (told.type, told.message) == (finding.value, "see 4711")
        assert told.by == ANA.person


async def test_a_note_on_a_failure_that_was_left_is_beside_the_tools_own_error(
    desk: Desk,
) -> None:
    claim, _ = await doubtful(desk)
    await say(desk, claim, Finding.RERUN, ANA, "try it once more")
    second = await desk.agents.claim(claim.with_(owner="w2"))
    assert isinstance(second, Claimed)
    await desk.agents.finish(claim.item_id, second.fence, BROKE)

    reply = await desk.agents.claim(claim.with_(owner="w3"))

    assert isinstance(reply, Done)
    assert (reply.result, reply.found) == (BROKE, None)
    assert reply.settled is not None
    assert reply.settled.message == "try it once more"


async def test_a_late_report_is_told_in_its_own_run_and_names_its_attempt(
    desk: Desk,
) -> None:
    left, fence = await doubtful(desk)
    assert await desk.agents.late_reports(left.ref, [left.item_id]) == ()
    await say(desk, left, Finding.SKIP, ANA)
    assert await desk.agents.late_reports(left.ref, [left.item_id]) == ()
    await desk.agents.finish(left.item_id, fence, PAID)

    asked = [left.item_id, "junk", "ap_s0_0.0"]
    [report] = await desk.agents.late_reports(left.ref, asked)
    other = left.ref.with_(thread="t2")

    assert (report.item_id, report.tool_call_id) == (left.item_id, left.tool_call_id)
    assert (report.ok, report.summary, report.is_apart) == (True, "paid 899", False)
    assert await desk.agents.late_reports(other, asked) == ()


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_report_about_an_earlier_attempt_is_apart_once_a_second_one_began(
    desk: Desk, *, has_begun: bool
) -> None:
    claim, fence = await doubtful(desk)
    await say(desk, claim, Finding.RERUN, ANA)
    if has_begun:
        await desk.agents.claim(claim.with_(owner="w2"))

    await desk.agents.finish(claim.item_id, fence, PAID)

    [report] = await desk.agents.late_reports(claim.ref, [claim.item_id])
    assert (report.ok, report.is_apart) == (True, has_begun)
