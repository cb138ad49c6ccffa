"""A connector asks the same of a gateway in its process and of one over HTTP."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from keyturn.connect.asking import Asker, schemas_of
from keyturn.connect.gate import Following, Gate, Listing, each_listed
from keyturn.connect.local_gate import LocalGate
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.errors import KeyRefused, SettingsError
from keyturn.gateway.protocol.http_api import AnswersQuestion, OpenQuestion, RunFacts
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
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


CALL = ProposedCall(tool="look_up_order", args={"order": 7}, tool_call_id="c1")
TURN = Turn(ref=TurnRef(agent="support", thread="t1", message_id="m1"), calls=(CALL,))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"agent": ""}, "an agent needs a name"),
        ({"gateway": object()}, "give the URL of one"),
        ({"gateway": None}, "No gateway is named"),
        ({"gateway": "http://gateway.example.com"}, "Over plain http"),
        ({"api_key": ""}, "is missing"),
        ({"ungated": "refund"}, "give a list of names"),
        ({"limit_s": 0}, "give seconds"),
        ({"limit_s": math.nan}, "give seconds"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(
    changed: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEYTURN_GATEWAY", raising=False)
    given: dict[str, Any] = {
        "agent": "support",
        "gateway": "https://gateway.example.com",
        "api_key": "tk_1",
        "ungated": (),
        "limit_s": math.inf,
    }
    Asker(**given)

    with pytest.raises(SettingsError, match=words):
        Asker(**(given | changed))


def asker_of(gate: LocalGate) -> Asker:
    """Return an agent without options."""
    return Asker("support", gate, None, ungated=(), limit_s=math.inf)


class OtherVerdicts(LocalGate):
    """A gateway whose verdicts are about another call."""

    other: dict[str, object]

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        return tuple(one.with_(**self.other) for one in await super().submit(turn))


@pytest.mark.parametrize(
    "other", [{"tool": "refund"}, {"tool_call_id": "c2"}, {"args_hash": "sha256:0"}]
)
async def test_a_verdict_on_another_call_denies_this_one(
    people: ServiceHarness, other: dict[str, object]
) -> None:
    gate = OtherVerdicts(people.store, lambda: people.policy)
    asker = asker_of(gate)
    gate.other = {}
    assert (await asker.verdict(TURN, CALL)).kind is VerdictKind.RUN

    gate.other = other
    denied = await asker.verdict(TURN, CALL)

    assert denied.kind is VerdictKind.DENY
    assert "was not cleared" in denied.reason


async def test_a_refused_key_ends_the_run(people: ServiceHarness) -> None:
    gate = LocalGate(people.store, lambda: people.policy)
    asker = asker_of(gate)
    await asker.verdict(TURN, CALL, DAN)
    other = CALL.with_(args={"order": 8})

    reused = await asker.verdict(TURN.with_(calls=(other,)), other)
    assert reused.kind is VerdictKind.DENY
    assert "was submitted before" in reused.reason

    class Refusing(LocalGate):
        async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
            raise KeyRefused("no key")

    refusing = Refusing(people.store, lambda: people.policy)
    with pytest.raises(KeyRefused):
        await asker_of(refusing).verdict(TURN, CALL)


def test_a_schema_that_cannot_be_used_is_left_out() -> None:
    good = {"type": "object"}

    assert schemas_of({"good": good, "bad": {"default": math.nan}}) == {"good": good}
