"""A call of another framework runs at most once, as people decided."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from keyturn.connect import once as once_module
from keyturn.connect.gate import Following, Gate
from keyturn.connect.kept_values import kept, recalled
from keyturn.connect.once import (
    CallReport,
    NotDecided,
    Permit,
    Value,
    Work,
    once,
)
from keyturn.gateway.approvals.decisions import (
    Approve,
    Edit,
    Reconcile,
    Reject,
)
from keyturn.gateway.client.claiming import HeldCall, Unfinished
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.http_api import Answered, AnswersQuestion
from keyturn.gateway.protocol.records import Finding, ItemState, Reading, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    RECONCILE_INTERRUPT,
    ClaimRequest,
    ProposedCall,
    Turn,
    TurnRef,
)
from tests.service.harness import ServiceHarness

REFUND = "process_refund: {tier: approve}"


@dataclass
class Bank:
    """Pays, and records each payment."""

    paid: list[JsonObject] = field(default_factory=list[JsonObject])
    permits: list[Permit] = field(default_factory=list[Permit])
    then: Callable[[], Awaitable[None]] | None = None

    async def pay(self, args: JsonObject, permit: Permit) -> dict[str, object]:
        self.paid.append(args)
        self.permits.append(permit)
        if self.then is not None:
            await self.then()
        return {"paid": args["amount"]}

    @property
    def work(self) -> Work[dict[str, object]]:
        return Work(self.pay)


@pytest.fixture
def bank() -> Bank:
    return Bank()


async def held(
    gate: Gate,
    args: JsonObject | None = None,
    tool: str = "process_refund",
    reading: Callable[[JsonObject], Reading | None] = lambda _: None,
) -> HeldCall:
    ref = TurnRef(agent="support", thread="t1", message_id=f"m-{tool}")
    call = ProposedCall(tool=tool, args=args or {"amount": 899.0}, tool_call_id="c1")
    (verdict,) = await gate.submit(Turn(ref=ref, calls=(call,)))
    return HeldCall(ref, verdict, call.args, reading=reading)


async def reaches(
    gate: Gate, people: ServiceHarness, call: HeldCall, state: ItemState
) -> None:
    """Wait until a call has a state."""
    place = (await gate.events(Following())).next
    while (await people.item(call.item_id)).state is not state:
        place = (await gate.events(Following(after=place, wait_s=30))).next


async def test_an_approved_call_runs_with_its_permit(
    gate: Gate, people: ServiceHarness, bank: Bank
) -> None:
    call = await held(gate)
    running = asyncio.create_task(once(gate, call, bank.work))
    assert bank.paid == []
    await people.decide(call.verdict, Approve())

    told = await running

    assert told == CallReport(Value({"paid": 899.0}))
    assert bank.paid == [{"amount": 899.0}]
    assert isinstance(bank.paid[0]["amount"], float)
    assert bank.permits[0].item_id == call.item_id
    assert bank.permits[0].idempotency_key
    assert (await people.item(call.item_id)).state is ItemState.EXECUTED


async def test_an_edit_is_told_with_its_author_reason_and_both_versions(
    gate: Gate, people: ServiceHarness, bank: Bank
) -> None:
    call = await held(gate)
    await people.decide(call.verdict, Edit(args={"amount": 45}, reason="part"))

    told = await once(gate, call, bank.work)
    again = await once(gate, call, bank.work)

    assert bank.paid == [{"amount": 45}]
    assert told == again
    assert told.edit is not None
    for part in ("ANA", "part", '{"amount": 899.0}', '{"amount": 45}', "Executed"):
        assert part in told.notice
    words = told.in_words(str)
    assert words == f"{told.notice}\n\n{{'paid': 45}}"


@pytest.mark.parametrize("decision", [Approve(reason="fine"), Reject()])
async def test_an_agent_that_floods_people_is_told_to_wait(
    gate: Gate, people: ServiceHarness, bank: Bank, decision: Approve | Reject
) -> None:
    people.put_policy(("protect:", "protect:\n  flood_per_10m: 1"))
    await held(gate, {"amount": 1})
    call = await held(gate, tool="send_email")
    await people.decide(call.verdict, decision)

    told = await once(gate, call, bank.work)

    assert "2 of your calls waited" in told.notice
    assert "wait 10 minutes, or combine" in told.notice


async def test_eight_attempts_at_once_are_one_effect_with_one_value(
    gate: Gate, people: ServiceHarness, bank: Bank
) -> None:
    call = await held(gate)
    others_wait = asyncio.Event()

    async def wait() -> None:
        await others_wait.wait()

    bank.then = wait
    attempts = [asyncio.create_task(once(gate, call, bank.work)) for _ in range(8)]
    await people.decide(call.verdict, Approve())
    await reaches(gate, people, call, ItemState.EXECUTING)
    others_wait.set()

    told = await asyncio.gather(*attempts)
    late = await once(gate, call, bank.work)

    assert len(bank.paid) == 1
    assert [one.value for one in (*told, late)] == [Value({"paid": 899.0})] * 9


async def test_a_failed_tool_is_told_as_failed_also_at_a_replay(
    gate: Gate, people: ServiceHarness, bank: Bank
) -> None:
    bank.then = hang_up
    call = await held(gate)
    await people.decide(call.verdict, Approve())

    told = await once(gate, call, bank.work)
    again = await once(gate, call, bank.work)

    assert len(bank.paid) == 1
    assert told == again
    assert told.is_error
    assert 'The tool failed: "ValueError: the bank hung up"' in told.text
    assert "Whether it took effect is unknown." in told.text


async def hang_up() -> None:
    raise ValueError("the bank hung up")


async def test_people_reconcile_a_failure_where_the_policy_asks_them(
    gate: Gate, people: ServiceHarness, bank: Bank
) -> None:
    bank.then = hang_up
    people.put_policy((REFUND, "process_refund: {tier: approve, on_failure: ask}"))
    call = await held(gate)
    await people.decide(call.verdict, Approve())
    running = asyncio.create_task(once(gate, call, bank.work))
    await reaches(gate, people, call, ItemState.IN_DOUBT)
    await people.decide(
        call.verdict, Reconcile(finding=Finding.SKIP, note="not booked")
    )

    told = await running

    assert len(bank.paid) == 1
    assert told.is_error
    assert 'The tool failed: "ValueError: the bank hung up"' in told.text
    assert '"not booked"' in told.notice


@pytest.mark.parametrize("finding", [*Finding])
async def test_a_call_in_doubt_waits_for_the_finding_of_people(
    gate: Gate,
    people: ServiceHarness,
    bank: Bank,
    finding: Finding,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = await held(gate)
    await people.decide(call.verdict, Approve())
    claim = people_claim(call)
    assert (await gate.claim(claim)).kind == "new"
    await people.doubt(call.item_id)
    ask, waits = gate.answers, asyncio.Event()

    async def answers(question: AnswersQuestion) -> tuple[Answered, ...]:
        if question.questions[0].kind == RECONCILE_INTERRUPT:
            waits.set()
        return await ask(question)

    monkeypatch.setattr(gate, "answers", answers)
    running = asyncio.create_task(once(gate, call, bank.work))
    await waits.wait()
    await people.decide(call.verdict, Reconcile(finding=finding))

    told = await running

    assert len(bank.paid) == (finding is Finding.RERUN)
    assert told.is_error is (finding is Finding.SKIP)
    if finding is Finding.EXECUTED:
        assert "confirmed that it took effect" in told.text


def people_claim(call: HeldCall) -> ClaimRequest:
    return ClaimRequest(
        item_id=call.item_id,
        ref=call.ref,
        tool=call.verdict.tool,
        tool_call_id=call.verdict.tool_call_id,
        owner="0" * 32,
    )


async def test_an_edit_that_the_tool_reads_differently_goes_back_to_people(
    gate: Gate, people: ServiceHarness, bank: Bank
) -> None:
    def reads(args: JsonObject) -> Reading | None:
        rounded: JsonObject = {"amount": round(float(str(args["amount"])))}
        return None if rounded == args else Reading(args=rounded)

    call = await held(gate, {"amount": 899}, reading=reads)
    await people.decide(call.verdict, Edit(args={"amount": 4.6}))
    running = asyncio.create_task(once(gate, call, bank.work))
    await reaches(gate, people, call, ItemState.PENDING)
    assert bank.paid == []
    await people.decide(call.verdict, Edit(args={"amount": 5}))

    told = await running

    assert bank.paid == [{"amount": 5}]
    assert told.value == Value({"paid": 5})
    assert '{"amount": 5}' in told.notice


async def test_a_limit_ends_the_wait_and_leaves_the_call_open(
    gate: Gate, people: ServiceHarness, bank: Bank
) -> None:
    call = await held(gate)

    with pytest.raises(NotDecided) as raised:
        await once(gate, call, bank.work, limit_s=0)

    assert raised.value.question.item_id == call.item_id
    await people.decide(call.verdict, Approve())
    assert (await once(gate, call, bank.work, limit_s=0)).value


async def test_an_outage_of_the_gateway_is_waited_out(
    gate: Gate, people: ServiceHarness, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once_module, "FIRST_PAUSE_S", 0.001)
    call, ask, failures = await held(gate), gate.answers, [1, 2, 3]

    async def answers(question: AnswersQuestion) -> tuple[Answered, ...]:
        if failures:
            failures.pop()
            raise StoreUnavailable("away")
        return await ask(question)

    monkeypatch.setattr(gate, "answers", answers)
    await people.decide(call.verdict, Approve())

    assert (await once(gate, call, bank.work)).value


async def test_an_error_that_proves_that_nothing_ran_gives_the_claim_back(
    gate: Gate, people: ServiceHarness, bank: Bank
) -> None:
    call = await held(gate)
    await people.decide(call.verdict, Approve())

    async def not_sent() -> None:
        raise ConnectionRefusedError

    bank.then = not_sent
    work = Work(bank.pay, raised=lambda _: Unfinished.NOT_BEGUN)
    with pytest.raises(ConnectionRefusedError):
        await once(gate, call, work)
    assert (await people.item(call.item_id)).state is ItemState.AUTHORIZED
    bank.then = None

    assert (await once(gate, call, bank.work)).value


async def test_a_call_that_the_policy_allows_runs_at_once(
    gate: Gate, people: ServiceHarness, bank: Bank
) -> None:
    people.put_policy((REFUND, "process_refund: {tier: notify}"))
    noticed = await once(gate, await held(gate), bank.work)
    free = await once(gate, await held(gate, tool="look_up_order"), bank.work)

    assert noticed.value == free.value == Value({"paid": 899.0})
    assert bank.permits[0].item_id
    assert not bank.permits[1].item_id
    assert bank.permits[1].idempotency_key


@pytest.mark.parametrize("value", ["text", 7.5, None, {"a": [1, {"$": "x"}]}, ""])
def test_a_kept_value_is_recalled(value: object) -> None:
    result = kept(value)

    assert recalled(result.payload) == value
    assert result.ok
    assert result.summary


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 2**20, {1: {2: {3}}}])
def test_a_value_that_cannot_be_kept_is_lost_and_not_invented(value: object) -> None:
    result: Result = kept(value)

    if result.payload:
        assert recalled(result.payload) == {"1": {"2": [3]}}
        return
    assert result.ok
    with pytest.raises(LookupError):
        recalled(result.payload)


@pytest.mark.parametrize("payload", ["", "[]", "{}", "nonsense", "7", "[" * 100_000])
def test_a_forged_payload_is_a_lost_value(payload: str) -> None:
    with pytest.raises(LookupError):
        recalled(payload)
