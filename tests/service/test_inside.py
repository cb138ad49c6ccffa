"""A pending call inside an agent's tool belongs to that agent's run and its end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decided,
    Edit,
    Forbidden,
    Reject,
    Stale,
)
from keyturn.gateway.approvals.ending import NO_LONGER_ASKED
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.metrics.report import outcome_of
from keyturn.gateway.protocol import http_api
from keyturn.gateway.protocol.http_api import Withdrawal
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.wire import (
    AnswerKind,
    ProposedCall,
    Refused,
    Turn,
    TurnRef,
    Verdict,
)
from keyturn.gateway.service.run.agents import AgentService, RunCalls
from keyturn.gateway.store.store import Store
from tests.api.api_stack import serving
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
    await harness.asked_by(DAN, agent="boss")

    verdict = await submit(harness, at("tools:1"))
    outcome = await harness.decide(verdict, Approve(), person("U0DAN"))

    assert (await harness.approval(verdict.item_id)).requester == DAN
    assert isinstance(outcome, Forbidden)


async def test_an_inner_decision_resumes_the_outer(harness: ServiceHarness) -> None:
    verdict = await submit(harness, at("tools:1", thread="a-thread-of-its-own"))

    await harness.decide(verdict, Approve())

    queue = harness.store.queue(harness.keys)
    await queue.prepare()
    delivery = await queue.take(block_ms=100)
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


class Overtaken(AgentService):
    """People decide before a withdrawal is written, and the agent may begin."""

    def __init__(
        self, harness: ServiceHarness, ref: TurnRef, verdict: Verdict, then: ItemState
    ) -> None:
        super().__init__(harness.store, lambda: harness.policy)
        self._harness = harness
        self._ref, self._verdict, self._then = ref, verdict, then

    async def withdraw_items(self, item_ids: frozenset[str]) -> None:
        harness, verdict = self._harness, self._verdict
        if self._then is not ItemState.PENDING:
            is_no = self._then is ItemState.REJECTED
            await harness.decide(verdict, Reject() if is_no else Approve())
        if self._then is ItemState.EXECUTING:
            claimed = await harness.agents.claim(claim_of(self._ref, verdict))
            assert claimed.kind == "new"
        assert (await harness.item(verdict.item_id)).state is self._then
        await super().withdraw_items(item_ids)


@pytest.mark.parametrize(
    ("meanwhile", "ends", "is_told"),
    [
        (ItemState.PENDING, ItemState.WITHDRAWN, True),
        (ItemState.AUTHORIZED, ItemState.WITHDRAWN, True),
        (ItemState.EXECUTING, ItemState.EXECUTING, False),
        (ItemState.REJECTED, ItemState.REJECTED, False),
    ],
)
async def test_only_what_was_taken_back_is_told_as_taken_back(
    store: Store, meanwhile: ItemState, ends: ItemState, *, is_told: bool
) -> None:
    harness = ServiceHarness(store)
    ref, (verdict,) = await harness.submit(("process_refund", {"amount": 5}))
    agents = Overtaken(harness, ref, verdict, meanwhile)
    calls = RunCalls(store, agents, tenant="default")

    ended = await calls.withdraw(ref.run_ref)

    assert (await harness.item(verdict.item_id)).state is ends
    assert ended == ((verdict.item_id,) if is_told else ())


async def over_http(harness: ServiceHarness, ref: TurnRef, item_id: str) -> None:
    async with serving(harness) as stack, stack.gateway() as gateway:
        question = Withdrawal(run=ref.run_ref, item_ids=(item_id,))
        assert await gateway.connection.ask(http_api.WITHDRAW, question) == (item_id,)


async def by_program(harness: ServiceHarness, ref: TurnRef, item_id: str) -> None:
    calls = RunCalls(harness.store, harness.agents, tenant="default")
    assert await calls.withdraw(ref.run_ref) == (item_id,)
    assert await calls.withdraw(ref.run_ref, [item_id]) == (item_id,)
    assert await calls.withdraw(ref.run_ref) == ()


@pytest.mark.parametrize("withdraw", [by_program, over_http])
@pytest.mark.parametrize("decision", [Approve(), Edit(args={"amount": 4})])
async def test_an_approved_call_that_nobody_asks_for_is_withdrawn_in_its_own_words(
    harness: ServiceHarness,
    withdraw: Callable[..., Awaitable[None]],
    decision: Approve | Edit,
) -> None:
    ref, (verdict,) = await harness.submit(("process_refund", {"amount": 5}))
    await harness.decide(verdict, decision)

    await withdraw(harness, ref, verdict.item_id)

    approval = await harness.approval(verdict.item_id)
    [item] = approval.items
    *_, event = await harness.audited()
    late = await harness.agents.claim(claim_of(ref, verdict))
    answer, note = answer_for(item), thread_note(event, approval)
    now_ms = item.changed_at_ms
    assert item.state is ItemState.WITHDRAWN
    assert (event.name, event.reason) == (EventName.ITEM_WITHDRAWN, NO_LONGER_ASKED)
    assert outcome_of(event) is None, "it was counted as approved"
    assert answer
    assert answer.type is AnswerKind.WITHDRAWN
    assert note
    assert isinstance(late, Refused)
    for text in (
        str(card(Frame(approval, b"k" * 32, "T0", now_ms)).blocks),
        answer.message,
        str(note.blocks),
        str(outcome_text(Stale(item=item))),
        late.reason,
    ):
        assert not re.search("fail|laps|in time|took it back|by the agent", text), text
        assert "withdrawn" in text.lower() or "no longer asks" in text
