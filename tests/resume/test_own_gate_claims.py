"""A claim that is for another decision than the answer that was read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from keyturn.connect.local_gate import LocalGate
from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import wire
from keyturn.gateway.protocol.http_api import OpenQuestion
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.resume.own_gates import OwnGates
from keyturn.gateway.resume.thread_state import ThreadState
from keyturn.gateway.store.store import Store
from tests.service.harness import POLICY, ServiceHarness

RUN = RunRef(agent="crm", thread="t1")
VALUE: Any = {
    "action_requests": [{"name": "pay", "args": {"amount": 5}}],
    "review_configs": [
        {"action_name": "pay", "allowed_decisions": ["approve", "edit", "reject"]}
    ],
}


class Stale:
    """Reads an approval, which people have replaced by an edit since then."""

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway

    async def found(
        self, run: RunRef, questions: Sequence[OpenQuestion]
    ) -> Mapping[OpenQuestion, tuple[JsonObject, int]]:
        answers = {
            one: wire.Answer(
                type=wire.AnswerKind.APPROVE,
                item_id=one.item_id,
                action_hash=one.action_hash,
            )
            for one in questions
        }
        return {one: (it.model_dump(mode="json"), 0) for one, it in answers.items()}

    async def handed(self, run: RunRef) -> Sequence[Item]:
        return ()

    async def withdraw(
        self, run: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        return ()


async def test_a_replaced_decision_is_not_handed_over(store: Store) -> None:
    people = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    gate = LocalGate(store, lambda: people.policy)
    asked = Question(id="q1", value=VALUE)
    state = ThreadState(exists=True, pending=(asked,), schemas={})
    threads: Any = Stale(gate)
    handing = OwnGates(threads)

    [question] = await handing.waiting(RUN, state)
    await people.decide(question.item_id, Edit(args={"amount": 3}))
    assert await handing.ready(RUN, state) == []

    item = await people.item(question.item_id)
    assert item.state is ItemState.AUTHORIZED
    await gate.aclose()
