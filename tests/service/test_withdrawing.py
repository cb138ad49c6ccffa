"""A program withdraws calls at the moment in which people decide them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.gateway.approvals.decisions import Approve, Edit, Reject, Stale
from keyturn.gateway.approvals.ending import NO_LONGER_ASKED
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.metrics.fold import outcome_of
from keyturn.gateway.protocol import http_api
from keyturn.gateway.protocol.http_api import Withdrawal
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import AnswerKind, Refused, TurnRef, Verdict
from keyturn.gateway.service.run.agents import AgentService, RunCalls
from keyturn.gateway.store.store import Store
from tests.api.api_stack import serving
from tests.service.harness import ServiceHarness, claim_of


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
