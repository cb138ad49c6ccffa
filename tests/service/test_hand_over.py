"""A decision is handed to the program that runs the call; it never counts as a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import get_args

import pytest
from pydantic import ValidationError

from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import (
    Approve,
    Edit,
    Stale,
)
from keyturn.gateway.approvals.ending import LEFT
from keyturn.gateway.approvals.events import HANDED_TO, EventName
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.metrics.report import outcome_of
from keyturn.gateway.protocol.records import (
    ItemState,
    NotTaken,
    Result,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    AnswerKind,
    AskedAgain,
    Busy,
    Claimed,
    ClaimRequest,
    HandedOver,
    HandOverEnd,
    Refused,
    ReportedOutcome,
)
from keyturn.gateway.service.run.agents import AgentService, RunCalls
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import (
    ANA,
    BEN,
    POLICY,
    ServiceHarness,
    claim_of,
)

NAME = "Claude Code"
REFUND = "process_refund: {tier: approve}"


async def approved(
    harness: ServiceHarness, decision: Approve | Edit | None = None
) -> ClaimRequest:
    """Return the claim of an approved call that another program runs."""
    args: JsonObject = {"amount": 5}
    ref, (verdict,) = await harness.submit(("process_refund", args), handed_to=NAME)
    await harness.decide(verdict, decision or Approve())
    return claim_of(ref, verdict)


def end_of(
    claim: ClaimRequest,
    granted: Claimed,
    problem: NotTaken = "",
    detail: str = "",
) -> HandOverEnd:
    return HandOverEnd(
        item_id=claim.item_id,
        fence=granted.fence,
        taken=not problem,
        problem=problem,
        detail=detail,
    )


async def state_of(harness: ServiceHarness, claim: ClaimRequest) -> ItemState:
    return (await harness.item(claim.item_id)).state


@pytest.mark.parametrize("is_remote", [False, True], ids=["in process", "over HTTP"])
@pytest.mark.parametrize("problem", get_args(NotTaken))
async def test_each_end_is_recorded_once_and_told_to_every_later_claim(
    harness: ServiceHarness, problem: NotTaken, *, is_remote: bool
) -> None:
    async def play(gateway: AgentService | HttpGateway) -> None:
        granted = await gateway.claim(claim)
        assert isinstance(granted, Claimed)
        assert granted.receipt == ""
        assert await gateway.heartbeat(claim.item_id, granted.fence)
        end = end_of(claim, granted, problem)
        other = end.with_(taken=bool(problem), problem="" if problem else "refused")

        kept = [await gateway.hand_over(one) for one in (end, end, other)]

        assert kept == [True, True, False]
        edit = (await harness.item(claim.item_id)).edit
        reply = await gateway.claim(claim.with_(owner="1" * 32))
        assert isinstance(reply, HandedOver)
        assert (reply.taken, reply.problem) == (not problem, problem)
        assert edit
        assert reply.edit
        assert reply.edit.with_(seal="") == edit

    claim = await approved(harness, Edit(args={"amount": 4}))
    if is_remote:
        async with serving(harness) as stack, stack.gateway() as gateway:
            await play(gateway)
    else:
        await play(harness.agents)

    ends = ItemState.NOT_TAKEN if problem else ItemState.HANDED_OVER
    [begun, ended] = await harness.audited(
        EventName.ITEM_HANDING_OVER, EventName(f"item.{ends}")
    )
    assert await state_of(harness, claim) is ends
    assert (ended.reason, outcome_of(ended)) == (problem, None)
    assert begun.data[HANDED_TO] == ended.data[HANDED_TO] == NAME
    # A retention ends it, and nothing else is due.
    assert await harness.store.approvals.scheduled(harness.keys) == []


async def test_a_handed_over_call_has_no_result_here(harness: ServiceHarness) -> None:
    claim = await approved(harness)
    granted = await harness.granted(claim)

    kept = [
        await harness.agents.finish(claim.item_id, granted.fence, Result(ok=ok))
        for ok in (True, False)
    ]

    assert kept == [False, False]
    assert await state_of(harness, claim) is ItemState.HANDING_OVER


async def test_a_local_call_is_not_handed_over(harness: ServiceHarness) -> None:
    claim = await harness.approved()
    granted = await harness.granted(claim)

    assert not await harness.agents.hand_over(end_of(claim, granted))
    report = ReportedOutcome(item_id=claim.item_id, ok=True)
    assert not await harness.agents.report_outcome(report)
    assert await state_of(harness, claim) is ItemState.EXECUTING


async def test_a_busy_program_gets_its_decision_later(harness: ServiceHarness) -> None:
    claim = await approved(harness)
    lapses_ms = (await harness.item(claim.item_id)).lapses_at_ms
    first = await harness.granted(claim)

    await harness.agents.release(claim.item_id, first.fence)
    item = await harness.item(claim.item_id)
    second = await harness.granted(claim.with_(owner="second"))

    assert (item.state, item.lapses_at_ms) == (ItemState.AUTHORIZED, lapses_ms)
    assert second.fence > first.fence
    assert second.idempotency_key == first.idempotency_key
    assert not await harness.agents.hand_over(end_of(claim, first))
    assert await harness.agents.hand_over(end_of(claim, second))


async def test_one_attempt_hands_over_at_a_time(harness: ServiceHarness) -> None:
    claim = await approved(harness)
    first, again = [await harness.agents.claim(claim) for _ in range(2)]

    others = await asyncio.gather(
        *(harness.agents.claim(claim.with_(owner=f"w{n}")) for n in range(8))
    )

    assert isinstance(first, Claimed)
    assert first == again
    assert {type(one) for one in others} == {Busy}


async def test_a_silent_connector_leaves_no_doubt(harness: ServiceHarness) -> None:
    claim = await approved(harness)
    first = await harness.granted(claim)
    await harness.owner_dies(claim.item_id)

    assert await harness.sweeper.sweep() == 0
    assert await state_of(harness, claim) is ItemState.HANDING_OVER
    second = await harness.granted(claim.with_(owner="second"))

    assert not await harness.agents.hand_over(end_of(claim, first))
    assert await harness.agents.hand_over(end_of(claim, second))


async def test_a_silent_connector_may_report_late(harness: ServiceHarness) -> None:
    """Its fence is in the mark of what it sent, so a restarted one needs no claim."""
    claim = await approved(harness)
    granted = await harness.granted(claim)
    await harness.owner_dies(claim.item_id)
    await harness.agents.hand_over(end_of(claim, granted))

    assert await state_of(harness, claim) is ItemState.HANDED_OVER


@pytest.mark.parametrize("stop", ["freeze", "policy"])
async def test_a_broken_hand_over_is_not_repeated_against_freeze_or_policy(
    harness: ServiceHarness, stop: str
) -> None:
    claim = await approved(harness)
    await harness.granted(claim)
    await harness.owner_dies(claim.item_id)
    if stop == "freeze":
        scope = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
        await harness.reviews.freezes.freeze(scope, "T0/U0ANA", "stop")
    else:
        harness.put_policy((REFUND, "process_refund: {tier: deny}"), of=POLICY)

    reply = await harness.agents.claim(claim.with_(owner="second"))

    assert isinstance(reply, Refused)
    assert "not known" in reply.reason
    assert await state_of(harness, claim) is ItemState.HANDING_OVER


async def by_time(harness: ServiceHarness, claim: ClaimRequest) -> None:
    await harness.lapsed(claim.item_id)
    assert isinstance(await harness.agents.claim(claim.with_(owner="new")), Refused)
    assert await harness.sweeper.sweep() == 1


async def by_its_connector(harness: ServiceHarness, claim: ClaimRequest) -> None:
    calls = RunCalls(harness.store, harness.agents, tenant="default")
    assert await calls.withdraw(claim.ref.run_ref) == (claim.item_id,)


@pytest.mark.parametrize(
    ("end", "state"),
    [(by_time, ItemState.LAPSED), (by_its_connector, ItemState.WITHDRAWN)],
)
async def test_a_hand_over_that_broke_off_ends_as_unknown(
    harness: ServiceHarness,
    end: Callable[[ServiceHarness, ClaimRequest], Awaitable[None]],
    state: ItemState,
) -> None:
    claim = await approved(harness)
    granted = await harness.granted(claim)
    await harness.owner_dies(claim.item_id)

    await end(harness, claim)

    item = await harness.item(claim.item_id)
    answer = answer_for(item)
    assert item.state is state
    assert item.revoked
    assert item.revoked.reason == LEFT
    assert answer
    assert answer.type is AnswerKind(state.value)
    assert "not known" in answer.message
    assert "did not run" not in answer.message
    assert not await harness.agents.hand_over(end_of(claim, granted))


async def test_a_live_hand_over_is_not_withdrawn(harness: ServiceHarness) -> None:
    claim = await approved(harness)
    granted = await harness.granted(claim)
    calls = RunCalls(harness.store, harness.agents, tenant="default")
    await harness.lapsed(claim.item_id)

    assert await calls.withdraw(claim.ref.run_ref) == ()
    assert await harness.sweeper.sweep() == 0
    await harness.agents.supersede_run(claim.ref.run_ref)

    assert await harness.agents.hand_over(end_of(claim, granted))


async def test_the_first_report_of_a_program_counts(harness: ServiceHarness) -> None:
    claim = await approved(harness)
    first = ReportedOutcome(item_id=claim.item_id, ok=True, summary="paid 5")
    too_early = await harness.agents.report_outcome(first)
    granted = await harness.granted(claim)
    await harness.agents.hand_over(end_of(claim, granted))

    async with serving(harness) as stack, stack.gateway() as gateway:
        kept = [
            await gateway.report_outcome(one)
            for one in (first, first, first.with_(ok=False))
        ]

    item = await harness.item(claim.item_id)
    assert (too_early, kept) == (False, [True, True, False])
    assert item.handed.reported == Result(ok=True, summary="paid 5")
    assert (item.state, item.result) == (ItemState.HANDED_OVER, None)
    [event] = await harness.audited(EventName.ITEM_REPORTED)
    assert (event.reason, event.data[HANDED_TO]) == ("executed", NAME)


async def test_a_restarted_connector_finds_its_calls(harness: ServiceHarness) -> None:
    claim = await approved(harness)
    async with serving(harness) as stack, stack.client() as client:

        async def listed(state: str) -> list[JsonObject]:
            reply = await client.get("/v1/approvals", params={"state": state})
            found: list[JsonObject] = reply.json()["approvals"]
            return found

        waiting = await listed("authorized")
        granted = await harness.granted(claim)
        [found] = await listed("handing_over")
        assert await listed("open") == [found]
        await harness.agents.hand_over(
            end_of(claim, granted, "refused", "no such tool")
        )
        assert await listed("open") == []
        one = (await client.get(f"/v1/approvals/{found['id']}")).json()["calls"][0]

    ref = claim.ref
    assert len(waiting) == 1
    assert (found["thread"], found["ns"]) == (ref.thread, ref.ns)
    assert found["message_id"] == ref.message_id
    assert (one["handed_to"], one["state"], one["ok"]) == (NAME, "not_taken", None)
    assert one["handed"] == {
        "taken": False,
        "problem": "refused",
        "detail": "no such tool",
        "reported_ok": None,
        "report": "",
    }


@pytest.mark.parametrize(("taken", "problem"), [(True, "deleted"), (False, "")])
def test_only_an_end_not_taken_has_a_problem(problem: str, *, taken: bool) -> None:
    with pytest.raises(ValidationError):
        HandOverEnd.model_validate(
            {"item_id": "ap_1.0", "fence": 1, "taken": taken, "problem": problem}
        )


# A person wants the agent to ask again, after it refused the answer.


async def refused(harness: ServiceHarness) -> tuple[ClaimRequest, str]:
    claim = await approved(harness)
    granted = await harness.granted(claim)
    await harness.agents.hand_over(end_of(claim, granted, "refused", "no such tool"))
    return claim, claim.item_id.partition(".")[0]


async def listed(stack: ApiStack, state: str) -> list[str]:
    async with stack.client() as client:
        reply = await client.get("/v1/approvals", params={"state": state})
    calls = [call for one in reply.json()["approvals"] for call in one["calls"]]
    return [one["id"] for one in calls if one["ask_again"]]


async def test_a_wish_is_listed_until_asked_again(harness: ServiceHarness) -> None:
    claim, approval = await refused(harness)
    async with serving(harness) as stack, stack.gateway() as gateway:
        assert await listed(stack, "open") == []
        report = AskedAgain(item_id=claim.item_id)
        assert not await gateway.report_asked_again(report)
        async with stack.client() as client:
            start = (await client.get("/v1/events")).json()["next"]

            assert isinstance(
                await harness.reviews.change_own(
                    approval, waiting_changes.ask_again, 0, ANA
                ),
                Change,
            )

            place = {"after": start, "wait": "5"}
            page = (await client.get("/v1/events", params=place)).json()
        assert [one["name"] for one in page["events"]] == ["item.wanted_again"]
        assert await listed(stack, "open") == [claim.item_id]
        assert await listed(stack, "ask_again") == [claim.item_id]
        assert await gateway.report_asked_again(report)
        assert await gateway.report_asked_again(report)
        assert await listed(stack, "open") == []

    item = await harness.item(claim.item_id)
    assert (item.state, item.handed.again_by) == (ItemState.NOT_TAKEN, ANA.person)
    [event] = await harness.audited(EventName.ITEM_WANTED_AGAIN)
    assert event.actor == "T0/U0ANA"
    assert isinstance(
        await harness.reviews.change_own(approval, waiting_changes.ask_again, 0, BEN),
        Stale,
    )


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "silent"])
async def test_a_wish_can_be_renewed(harness: ServiceHarness, *, is_told: bool) -> None:
    claim, approval = await refused(harness)
    await harness.reviews.change_own(approval, waiting_changes.ask_again, 0, ANA)
    if is_told:
        report = AskedAgain(item_id=claim.item_id, ok=False, detail="no such thread")
        assert await harness.agents.report_asked_again(report)
    else:
        await harness.lapsed(claim.item_id)
        assert await harness.sweeper.sweep() == 1

    item = await harness.item(claim.item_id)
    assert item.handed.again_by is None
    assert item.handed.again_detail == ("no such thread" if is_told else "")
    [event] = await harness.audited(EventName.ITEM_ASKED_ANEW)
    assert event.reason
    assert await harness.store.approvals.scheduled(harness.keys) == []
    assert isinstance(
        await harness.reviews.change_own(approval, waiting_changes.ask_again, 0, BEN),
        Change,
    )
