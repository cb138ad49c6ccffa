"""Each move of an item is made by its row of the table, and by nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.gateway.approvals import lifecycle
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Reconcile,
    Reject,
    Respond,
)
from keyturn.gateway.approvals.lifecycle import TRANSITIONS, Transition
from keyturn.gateway.errors import IllegalTransition
from keyturn.gateway.protocol.records import (
    Finding,
    ItemState,
    NotTaken,
    Result,
    RunRef,
)
from keyturn.gateway.protocol.wire import Claimed, HandOverEnd
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.recovery import Recovery
from keyturn.gateway.store.store import Store
from tests.service.harness import ServiceHarness, claim_of

S, M = ItemState, Transition
OK, BAD = Result(ok=True), Result(ok=False)
REFUND = "process_refund: {tier: approve}"


class Call:
    """One call, and its possible events."""

    def __init__(
        self,
        harness: ServiceHarness,
        tool: str = "process_refund",
        handed_to: str = "",
    ) -> None:
        self.harness = harness
        self.tool = tool
        self.handed_to = handed_to
        self.fence = 0

    async def state(self) -> ItemState:
        return (await self.harness.item(self.id)).state

    async def submit(self) -> None:
        self.ref, (verdict,) = await self.harness.submit(
            (self.tool, {"amount": 9}), handed_to=self.handed_to
        )
        self.id, self.request = verdict.item_id, claim_of(self.ref, verdict)

    async def decide(self, decision: Decision) -> None:
        await self.harness.decide(self.id, decision)

    async def approve(self) -> None:
        await self.submit()
        await self.decide(Approve())

    async def claim(self, owner: str = "first") -> None:
        reply = await self.harness.agents.claim(self.request.with_(owner=owner))
        self.fence = reply.fence if isinstance(reply, Claimed) else self.fence

    async def start(self) -> None:
        await self.approve()
        await self.claim()

    async def die(self) -> None:
        await self.start()
        await self.harness.owner_dies(self.id)

    async def doubt(self) -> None:
        await self.die()
        await self.harness.sweeper.sweep()

    async def found(self, finding: Finding) -> None:
        await self.doubt()
        await self.decide(Reconcile(finding=finding))

    async def finish(self, result: Result) -> None:
        await self.harness.agents.finish(self.id, self.fence, result)

    async def hand_over(self, problem: NotTaken = "") -> None:
        end = HandOverEnd(
            item_id=self.id, fence=self.fence, taken=not problem, problem=problem
        )
        await self.harness.agents.hand_over(end)

    async def expire(self) -> None:
        await self.harness.overdue(self.id.partition(".")[0])
        await self.harness.sweeper.sweep()

    async def lapse(self) -> None:
        await self.harness.lapsed(self.id)
        await self.harness.sweeper.sweep()

    async def withdraw(self) -> None:
        await self.harness.agents.withdraw_items(frozenset({self.id}))

    async def ask_for_more(self) -> None:
        self.harness.put_policy((REFUND, "process_refund: {tier: escalate}"))
        await self.claim()

    async def restore(self) -> None:
        await Recovery(self.harness.store, Runners({}, InMemorySaver())).doubt_all()

    async def release(self) -> None:
        await self.harness.agents.release(self.id, self.fence)


Step = Callable[[Call], Awaitable[None]]
ROWS: dict[tuple[ItemState, Transition], tuple[Step, Step]] = {
    (S.PENDING, M.AUTHORIZE): (Call.submit, lambda c: c.decide(Approve())),
    (S.PENDING, M.REJECT): (Call.submit, lambda c: c.decide(Reject(reason="no"))),
    (S.PENDING, M.ANSWER): (Call.submit, lambda c: c.decide(Respond(message="hm"))),
    (S.PENDING, M.EXPIRE): (Call.submit, Call.expire),
    (S.PENDING, M.SUPERSEDE): (
        Call.submit,
        lambda c: c.harness.agents.supersede_run(RunRef(agent="support", thread="t1")),
    ),
    (S.PENDING, M.WITHDRAW): (Call.submit, Call.withdraw),
    (S.AUTHORIZED, M.CLAIM): (Call.approve, Call.claim),
    (S.AUTHORIZED, M.LAPSE): (Call.approve, Call.lapse),
    (S.AUTHORIZED, M.WITHDRAW): (Call.approve, Call.withdraw),
    (S.AUTHORIZED, M.REOPEN): (Call.approve, Call.ask_for_more),
    (S.AUTHORIZED, M.DOUBT): (Call.approve, Call.restore),
    (S.AUTHORIZED, M.EXECUTE): (
        lambda c: c.found(Finding.RERUN),
        lambda c: c.finish(OK),
    ),
    (S.AUTHORIZED, M.FAIL): (
        lambda c: c.found(Finding.RERUN),
        lambda c: c.finish(BAD),
    ),
    (S.EXECUTING, M.CLAIM): (Call.die, lambda c: c.claim("second")),
    (S.EXECUTING, M.EXECUTE): (Call.start, lambda c: c.finish(OK)),
    (S.EXECUTING, M.FAIL): (Call.start, lambda c: c.finish(BAD)),
    (S.EXECUTING, M.DOUBT): (Call.die, lambda c: c.claim("second")),
    (S.EXECUTING, M.RELEASE): (Call.start, Call.release),
    (S.IN_DOUBT, M.EXECUTE): (Call.doubt, lambda c: c.finish(OK)),
    (S.IN_DOUBT, M.FAIL): (
        Call.doubt,
        lambda c: c.decide(Reconcile(finding=Finding.SKIP)),
    ),
    (S.IN_DOUBT, M.RETRY): (
        Call.doubt,
        lambda c: c.decide(Reconcile(finding=Finding.RERUN)),
    ),
    (S.FAILED, M.EXECUTE): (lambda c: c.found(Finding.SKIP), lambda c: c.finish(OK)),
    (S.AUTHORIZED, M.HAND): (Call.approve, Call.claim),
    (S.HANDING_OVER, M.HAND): (Call.die, lambda c: c.claim("second")),
    (S.HANDING_OVER, M.RELEASE): (Call.start, Call.release),
    (S.HANDING_OVER, M.TAKE): (Call.start, Call.hand_over),
    (S.HANDING_OVER, M.MISS): (
        Call.start,
        lambda c: c.hand_over("deleted"),
    ),
    (S.HANDING_OVER, M.WITHDRAW): (Call.die, Call.withdraw),
    (S.HANDING_OVER, M.LAPSE): (Call.die, Call.lapse),
}
IDEMPOTENT = {(S.EXECUTING, M.CLAIM)}


CLEARED = (S.PENDING, M.CLEAR)


def test_every_row_of_the_table_is_played() -> None:
    assert ROWS.keys() | {CLEARED} == TRANSITIONS.keys()


async def test_the_policy_decides_by_its_row_and_without_it_nothing_opens(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Call(ServiceHarness(store))
    call.harness.put_policy((REFUND, "process_refund: {tier: notify}"))

    with monkeypatch.context() as patch:
        rows = {each: to for each, to in TRANSITIONS.items() if each != CLEARED}
        patch.setattr(lifecycle, "TRANSITIONS", rows)
        with pytest.raises(IllegalTransition):
            await call.submit()
    opened = await call.harness.opened()
    await call.submit()

    assert opened == []
    assert await call.state() is TRANSITIONS[CLEARED]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
async def test_a_row_makes_its_move_and_without_it_the_move_is_refused(
    store: Store, row: tuple[ItemState, Transition], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, act = ROWS[row]
    is_handed = row[0] is S.HANDING_OVER or row[1] is M.HAND
    call = Call(
        ServiceHarness(store),
        "send_email" if row in IDEMPOTENT else "process_refund",
        handed_to="crm" if is_handed else "",
    )
    await prepare(call)
    assert await call.state() is row[0]

    with monkeypatch.context() as patch:
        rows = {each: state for each, state in TRANSITIONS.items() if each != row}
        patch.setattr(lifecycle, "TRANSITIONS", rows)
        with pytest.raises(IllegalTransition):
            await act(call)
    refused = await call.state()
    await act(call)

    assert refused is row[0]
    assert await call.state() is TRANSITIONS[row]
