"""A pending call inside an agent's tool belongs to that agent's run and its end."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.gateway.approvals.decisions import Approve, Decided, Forbidden, Stale
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.runs.threads import ThreadFacts
from tests.service.harness import ANA, DAN, ServiceHarness, claim_of, person

BOSS = RunRef(agent="boss", thread="t1")


def at(
    ns: str, *, message: str = "m1", agent: str = "payer", thread: str = "t1"
) -> TurnRef:
    """Return a turn of an agent inside the boss's tool; with no ns, of the boss."""
    if not ns:
        return TurnRef(agent="boss", thread="t1", message_id=message)
    return TurnRef(
        agent=agent, thread=thread, ns=ns, message_id=message, nested_in=BOSS
    )


async def submit(
    harness: ServiceHarness,
    ref: TurnRef,
    tool: str = "process_refund",
    tenant: str = "default",
) -> Verdict:
    """Submit one call."""
    agents = AgentService(harness.store, lambda: harness.policy, tenant=tenant)
    call = ProposedCall(tool=tool, args={"amount": 1}, tool_call_id="c1")
    (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
    return verdict


async def state(harness: ServiceHarness, verdict: Verdict) -> ItemState:
    """Return the state of a held call."""
    return (await harness.item(verdict.item_id)).state


async def test_an_outer_requester_approves_no_inner(harness: ServiceHarness) -> None:
    facts = ThreadFacts(requester=DAN)
    await harness.store.threads.change(
        harness.keys, "boss", "t1", lambda _: facts, why="aside"
    )

    verdict = await submit(harness, at("tools:1"))
    outcome = await harness.decide(verdict, Approve(), person("U0DAN"))

    assert (await harness.approval(verdict.item_id)).requester == DAN
    assert isinstance(outcome, Forbidden)


async def test_an_inner_decision_resumes_the_outer(harness: ServiceHarness) -> None:
    verdict = await submit(harness, at("tools:1", thread="a-thread-of-its-own"))

    await harness.decide(verdict, Approve())

    queue = harness.store.queue(harness.keys)
    await queue.prepare()
    delivery = await queue.take("w", block_ms=100)
    assert delivery
    assert (delivery.job.agent, delivery.job.thread) == ("boss", "t1")


INSIDE = ["tools:1", "tools:1|tools:2", "tools:1|1", "|step|__pregel_pull|step"]


@pytest.mark.parametrize("ns", INSIDE)
@pytest.mark.parametrize("is_repair", [True, False])
async def test_what_waits_inside_ends_when_the_turn_outside_does(
    harness: ServiceHarness, ns: str, *, is_repair: bool
) -> None:
    outside = at("")
    await submit(harness, outside, "look_up_order")
    inner = await submit(harness, at(ns))
    click = await harness.click(inner)

    if is_repair:
        await harness.agents.supersede(outside)
    else:
        await submit(harness, at("", message="m2"), "look_up_order")

    assert await state(harness, inner) is ItemState.SUPERSEDED
    outcome = await harness.reviews.decide(click, Approve(), ANA)
    assert isinstance(outcome, Stale)
    assert outcome.item.state is ItemState.SUPERSEDED
    told = await harness.announced(EventName.ITEM_SUPERSEDED)
    assert [(one.item, one.run_ref) for one in told] == [(inner.item_id, BOSS)]


@pytest.mark.parametrize("ns", ["tools:2", "tools:1|1", "tools:1|1|tools:3", ""])
async def test_other_calls_of_the_run_go_on(harness: ServiceHarness, ns: str) -> None:
    beside = await submit(harness, at(ns, message="m9"))
    await submit(harness, at("tools:1"))

    await submit(harness, at("tools:1", message="m2"))
    await harness.agents.supersede(at("tools:1", message="m2"))

    assert await state(harness, beside) is ItemState.PENDING


async def test_another_run_and_another_tenant_go_on(harness: ServiceHarness) -> None:
    other = RunRef(agent="boss", thread="t2")
    elsewhere = await submit(harness, at("tools:1").with_(nested_in=other))
    theirs = await submit(harness, at("tools:1"), tenant="other")

    await submit(harness, at("", message="m2"), "look_up_order")
    await harness.agents.supersede(at(""))

    assert await state(harness, elsewhere) is ItemState.PENDING
    loaded = await harness.store.approvals.load(theirs.item_id.rpartition(".")[0])
    assert loaded
    assert loaded.approval.items[0].is_pending


async def test_what_runs_inside_is_not_cut_off(harness: ServiceHarness) -> None:
    ref = at("tools:1")
    inner = await submit(harness, ref)
    await harness.decide(inner, Approve())
    await harness.agents.claim(claim_of(ref, inner))

    await harness.agents.supersede(at(""))

    assert await state(harness, inner) is ItemState.EXECUTING


@pytest.mark.parametrize("number", range(6))
async def test_a_click_at_the_moment_of_the_cut_off_has_one_end(
    harness: ServiceHarness, number: int
) -> None:
    inner = await submit(harness, at("tools:1"))
    click = await harness.click(inner)

    async def cut_off() -> None:
        if number % 2:
            await harness.agents.supersede(at(""))
        else:
            await submit(harness, at("", message="m2"), "look_up_order")

    outcome, _ = await asyncio.gather(
        harness.reviews.decide(click, Approve(), ANA), cut_off()
    )
    reply = await harness.agents.claim(claim_of(at("tools:1"), inner))

    ended = await state(harness, inner)
    is_click_first = isinstance(outcome, Decided)
    assert reply.kind == "refused"
    assert ended is (ItemState.LAPSED if is_click_first else ItemState.SUPERSEDED)
    assert is_click_first or isinstance(outcome, Stale)
