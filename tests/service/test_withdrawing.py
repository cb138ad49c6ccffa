"""A program takes calls back at the moment in which people decide them."""

from __future__ import annotations

import pytest

from tests.service.harness import ANA, ServiceHarness, claim_of
from twokey.gateway.approvals.decisions import Approve, Reject
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import TurnRef, Verdict
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.pending_calls import PendingCalls
from twokey.gateway.store.store import Store


class Overtaken(AgentService):
    """People decide before a withdrawal is written, and the agent may begin."""

    def __init__(
        self, harness: ServiceHarness, ref: TurnRef, verdict: Verdict, then: ItemState
    ) -> None:
        super().__init__(harness.store, lambda: harness.policy)
        self._harness = harness
        self._ref, self._verdict, self._then = ref, verdict, then

    async def withdraw(self, item_ids: frozenset[str]) -> None:
        harness, verdict = self._harness, self._verdict
        if self._then is not ItemState.PENDING:
            is_no = self._then is ItemState.REJECTED
            click = await harness.click(verdict)
            await harness.reviews.decide(click, Reject() if is_no else Approve(), ANA)
        if self._then is ItemState.EXECUTING:
            claimed = await harness.agents.claim(claim_of(self._ref, verdict))
            assert claimed.kind == "new"
        assert (await harness.item(verdict.item_id)).state is self._then
        await super().withdraw(item_ids)


@pytest.mark.parametrize(
    ("meanwhile", "ends", "is_told"),
    [
        (ItemState.PENDING, ItemState.WITHDRAWN, True),
        (ItemState.AUTHORIZED, ItemState.LAPSED, True),
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
    calls = PendingCalls(store, agents, tenant="default")

    ended = await calls.withdraw(ref.run_ref)

    assert (await harness.item(verdict.item_id)).state is ends
    assert ended == ((verdict.item_id,) if is_told else ())
