"""One authorization executes at most once, and doubt is visible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

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
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    Busy,
    Claimed,
    ClaimRequest,
    Done,
    TurnRef,
)
from keyturn.gateway.store.connection.connection import Connection
from tests.conftest import eventually
from tests.service.harness import (
    ANA,
    BEN,
    CHLOE,
    ServiceHarness,
    claim_of,
)

RAN = Result(ok=True, summary="refunded", payload="{}")


async def test_sixteen_executors_get_one_claim(harness: ServiceHarness) -> None:
    claim = await harness.approved()

    replies = await asyncio.gather(
        *(harness.agents.claim(claim.with_(owner=f"w{n}")) for n in range(16))
    )

    assert sum(isinstance(reply, Claimed) for reply in replies) == 1
    assert sum(isinstance(reply, Busy) for reply in replies) == 15


async def test_a_second_attempt_waits_for_the_first(harness: ServiceHarness) -> None:
    claim = await harness.approved()
    other = claim.with_(owner="1" * 32)
    first = await harness.granted(claim)

    waits = [await harness.agents.claim(other) for _ in range(3)]
    await harness.agents.finish(claim.item_id, first.fence, RAN)
    after = [await harness.agents.claim(one) for one in (claim, other)]

    assert [type(one) for one in waits] == [Busy] * 3
    assert after == [Done(result=RAN)] * 2


@pytest.mark.parametrize("owner", ["", "worker-1", "0" * 31, "0" * 37, "g" * 32])
def test_an_attempt_has_a_random_name(owner: str) -> None:
    # Two processes that have one name would both be granted the call.
    with pytest.raises(ValidationError):
        ClaimRequest(
            item_id="ap.0",
            ref=TurnRef(agent="a", thread="t", message_id="m"),
            tool="x",
            tool_call_id="c",
            owner=owner,
        )


@pytest.mark.parametrize("ok", [True, False])
async def test_a_second_result_is_refused(harness: ServiceHarness, *, ok: bool) -> None:
    claim = await harness.approved()
    granted = await harness.granted(claim)
    first = Result(ok=ok, summary="paid 5", payload="5")
    reports = [first, first, first.with_(payload="6"), first.with_(ok=not ok)]

    kept = [
        await harness.agents.finish(claim.item_id, granted.fence, one)
        for one in reports
    ]

    assert kept == [True, True, False, False]
    assert (await harness.item(claim.item_id)).result == first


async def test_an_idempotent_retry_has_the_same_key(harness: ServiceHarness) -> None:
    ref, verdicts = await harness.submit(("send_email", {"to": "a@example.org"}))
    claim = claim_of(ref, verdicts[0])
    await harness.decide(verdicts[0], Approve())
    first = await harness.agents.claim(claim)
    await harness.owner_dies(claim.item_id)

    second = await harness.agents.claim(claim.with_(owner="w2"))

    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert first.idempotency_key == second.idempotency_key
    assert second.fence > first.fence
    assert not await harness.agents.finish(claim.item_id, first.fence, RAN)


async def test_a_heartbeat_reports_a_lost_claim(harness: ServiceHarness) -> None:
    claim = await harness.approved()
    granted = await harness.granted(claim)

    await harness.owner_dies(claim.item_id)
    kept = await harness.agents.heartbeat(claim.item_id, granted.fence)
    await harness.sweeper.sweep()
    state = (await harness.item(claim.item_id)).state
    lost = await harness.agents.heartbeat(claim.item_id, granted.fence + 1)

    assert kept
    assert state is ItemState.EXECUTING
    assert not lost


async def test_an_authorization_waits_for_inner_calls(harness: ServiceHarness) -> None:
    claim = await harness.approved()
    first = await harness.granted(claim)
    await harness.lapsed(claim.item_id)

    await harness.agents.release(claim.item_id, first.fence)
    await harness.sweeper.sweep()

    assert (await harness.item(claim.item_id)).state is ItemState.AUTHORIZED
    await harness.granted(claim.with_(owner="worker-2"))


async def test_an_unstarted_attempt_extends_nothing(harness: ServiceHarness) -> None:
    """Its process got a stop signal between the claim and the tool."""
    claim = await harness.approved()
    before = (await harness.item(claim.item_id)).lapses_at_ms
    granted = await harness.granted(claim)

    await harness.agents.release(claim.item_id, granted.fence, has_begun=False)

    assert (await harness.item(claim.item_id)).lapses_at_ms == before
    await harness.lapsed(claim.item_id)
    await harness.sweeper.sweep()
    assert (await harness.item(claim.item_id)).state is ItemState.LAPSED


# A cancellation while calls start or end together leaves no doubt behind.


class Held:
    """Delays the replies of scripts until they are released."""

    def __init__(self, conn: Connection, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_answer = asyncio.Event(), asyncio.Event()
        real: Callable[..., Any] = conn.evalsha

        async def held(*given: Any, **named: Any) -> Any:
            found = await real(*given, **named)
            self.begun.set()
            await self.may_answer.wait()
            return found

        patch.setattr(conn, "evalsha", held)


async def approved(harness: ServiceHarness) -> list[ClaimRequest]:
    """Return the claims of three approved calls of one card."""
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"amount": n + 1}) for n in range(3)
    ]
    ref, verdicts = await harness.submit(*calls)
    for verdict in verdicts:
        await harness.decide(verdict, Approve())
    return [claim_of(ref, one, owner=one.item_id) for one in verdicts]


async def test_others_get_their_answer_from_what_a_cancelled_one_wrote(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await approved(harness)
    held = Held(harness.store.conn, monkeypatch)
    starts = [asyncio.create_task(harness.agents.claim(one)) for one in claims]
    await held.begun.wait()

    starts[0].cancel()
    await asyncio.sleep(0)
    held.may_answer.set()
    cancelled, *replies = await asyncio.gather(*starts, return_exceptions=True)

    assert isinstance(cancelled, asyncio.CancelledError)
    assert all(isinstance(reply, Claimed) for reply in replies)


async def test_an_end_is_recorded_though_its_caller_is_cancelled(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await approved(harness)
    granted = [await harness.agents.claim(one) for one in claims]
    held = Held(harness.store.conn, monkeypatch)
    ends = [
        asyncio.create_task(harness.agents.finish(claim.item_id, reply.fence, RAN))
        for claim, reply in zip(claims, granted, strict=True)
        if isinstance(reply, Claimed)
    ]
    await asyncio.sleep(0)

    for one in ends:
        one.cancel()
    held.may_answer.set()
    await asyncio.gather(*ends, return_exceptions=True)

    async def all_ended() -> bool:
        items = [await harness.item(one.item_id) for one in claims]
        return all(item.state is ItemState.EXECUTED for item in items)

    await eventually(all_ended)


# A doubt is reconciled by whom the call needs, and the executor's own word is kept.

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


async def test_a_finding_is_about_one_attempt(harness: ServiceHarness) -> None:
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


async def test_a_report_changes_no_second_run(harness: ServiceHarness) -> None:
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
async def test_agents_read_the_note(harness: ServiceHarness, finding: Finding) -> None:
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


async def test_a_late_report_names_its_attempt(harness: ServiceHarness) -> None:
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
