"""A connector asks the same of a gateway in its process and of one over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from keyturn.connect.gate import Following, Gate, Listing, each_listed
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.protocol.http_api import AnswersQuestion, OpenQuestion, RunFacts
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
)
from tests.service.harness import DAN, ServiceHarness


async def asked(
    gate: Gate, thread: str = "t1", agent: str = "support"
) -> tuple[TurnRef, Verdict]:
    ref = TurnRef(agent=agent, thread=thread, message_id="m1")
    call = ProposedCall(tool="process_refund", args={"amount": 5}, tool_call_id="c1")
    (verdict,) = await gate.submit(Turn(ref=ref, calls=(call,)))
    return ref, verdict


def question(ref: TurnRef, verdict: Verdict, wait_s: float = 0) -> AnswersQuestion:
    one = OpenQuestion(
        kind=APPROVAL_INTERRUPT,
        item_id=verdict.item_id,
        action_hash=verdict.action_hash,
    )
    return AnswersQuestion(run=ref.run_ref, questions=(one,), wait_s=wait_s)


async def test_a_decision_ends_its_wait(gate: Gate, people: ServiceHarness) -> None:
    ref, verdict = await asked(gate)
    assert await gate.answers(question(ref, verdict)) == ()

    waiting = asyncio.create_task(gate.answers(question(ref, verdict, wait_s=30)))
    await people.decide(verdict, Approve())

    [found] = await waiting
    assert (found.item_id, found.answer["type"]) == (verdict.item_id, "approve")


async def test_a_connector_owns_its_thread(gate: Gate, people: ServiceHarness) -> None:
    _, verdict = await asked(gate)

    await people.decide(verdict, Approve())

    approval = await people.approval(verdict.item_id)
    assert approval.resumes_itself


async def test_a_withdrawn_call_is_named(gate: Gate, people: ServiceHarness) -> None:
    ref, verdict = await asked(gate)

    assert await gate.withdraw(ref.run_ref, ("ap_other.0",)) == ()
    assert await gate.withdraw(ref.run_ref) == (verdict.item_id,)

    assert (await people.item(verdict.item_id)).state is ItemState.WITHDRAWN


async def test_the_requester_is_remembered(gate: Gate, people: ServiceHarness) -> None:
    ref = TurnRef(agent="support", thread="t1", message_id="m1")
    await gate.remember(RunFacts(run=ref.run_ref, requester=DAN))

    _, verdict = await asked(gate)

    assert (await people.approval(verdict.item_id)).requester == DAN


async def test_open_calls_are_paged(gate: Gate, people: ServiceHarness) -> None:
    mine = [(await asked(gate, thread=f"t{n}"))[1] for n in range(3)]
    await asked(gate, agent="billing & co")
    await people.decide(mine[0], Approve())

    async def listed(**query: Any) -> list[str]:
        question = Listing(limit=1, **query)
        found = [one async for one in each_listed(gate, question)]
        return [call.id for one in found for call in one.calls]

    assert sorted(await listed(agent="support")) == sorted(v.item_id for v in mine)
    assert await listed(state="authorized") == [mine[0].item_id]
    assert len(await listed(agent="billing & co")) == 1
    assert len(await listed()) == 4


async def test_events_follow_a_place(gate: Gate, people: ServiceHarness) -> None:
    _, verdict = await asked(gate)
    begun = await gate.events(Following())
    assert begun.events == ()

    waiting = asyncio.create_task(gate.events(Following(after=begun.next, wait_s=30)))
    await people.decide(verdict, Approve())

    [decided] = (await waiting).events
    assert decided.item == verdict.item_id
    assert decided.state is ItemState.AUTHORIZED
    others = await gate.events(Following("billing", begun.next))
    assert others.events == ()
