"""Each move of an item is made by its row of the table, and by nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.gateway.approvals import lifecycle
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Forbidden,
    Reconcile,
    Reject,
    Respond,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.lifecycle import TRANSITIONS, Transition
from keyturn.gateway.errors import IllegalTransition
from keyturn.gateway.protocol.records import (
    Finding,
    ItemState,
    NotTaken,
    Result,
    RunRef,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Claimed, HandOverEnd
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.recovery import Recovery
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_proofs import calls_of
from tests.service.decided_calls import decided
from tests.service.harness import BEN, EVE, POLICY, ServiceHarness, claim_of

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


# Each kind of thing that happens to a call is one entry of the audit log.


REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
Scene = Callable[[ServiceHarness], Awaitable[object]]


def submitted(tool: str) -> Scene:
    return lambda harness: harness.submit((tool, {"amount": 120}))


def said(decision: Decision, tool: str = "process_refund") -> Scene:
    return lambda harness: decided(harness, decision, tool=tool)


async def ended(harness: ServiceHarness, *, ok: bool) -> None:
    claim = await decided(harness)
    await harness.ran(claim, Result(ok=ok))


async def given_back(harness: ServiceHarness) -> None:
    claim = await decided(harness)
    granted = await harness.granted(claim)
    await harness.agents.release(claim.item_id, granted.fence)


async def in_doubt(harness: ServiceHarness) -> None:
    claim = await decided(harness)
    await harness.granted(claim)
    await harness.doubt(claim.item_id)
    await harness.decide(claim.item_id, Reconcile(finding=Finding.EXECUTED))


async def frozen(harness: ServiceHarness) -> None:
    await harness.reviews.freezes.freeze(REFUNDS, "T0/U0ANA", "wrong amounts")
    await harness.reviews.freezes.unfreeze(REFUNDS, "T0/U0BEN")


async def refused(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    for _ in range(3):
        assert isinstance(
            await harness.reviews.decide(click, Approve(), EVE), Forbidden
        )


N = EventName
KINDS: dict[str, tuple[Scene, tuple[EventName, ...]]] = {
    "a submission": (submitted("process_refund"), (N.APPROVAL_OPENED,)),
    "a verdict of the policy": (submitted("drop_table"), (N.CALL_DENIED,)),
    "a call that the policy lets run": (submitted("look_up_order"), (N.CALL_RAN,)),
    "a vote": (said(Approve(), "wire_money"), (N.APPROVAL_OPENED, N.ITEM_VOTED)),
    "an approval": (said(Approve()), (N.APPROVAL_OPENED, N.ITEM_AUTHORIZED)),
    "an edit": (
        said(Edit(args={"amount": 1})),
        (N.APPROVAL_OPENED, N.ITEM_EDITED, N.ITEM_AUTHORIZED),
    ),
    "a rejection": (said(Reject(reason="no")), (N.APPROVAL_OPENED, N.ITEM_REJECTED)),
    "an answer": (said(Respond(message="no")), (N.APPROVAL_OPENED, N.ITEM_ANSWERED)),
    "a refusal": (refused, (N.APPROVAL_OPENED, N.DECISION_REFUSED)),
    "a claim and a result": (
        lambda harness: ended(harness, ok=True),
        (N.APPROVAL_OPENED, N.ITEM_AUTHORIZED, N.ITEM_EXECUTING, N.ITEM_EXECUTED),
    ),
    "a failure": (
        lambda harness: ended(harness, ok=False),
        (N.APPROVAL_OPENED, N.ITEM_AUTHORIZED, N.ITEM_EXECUTING, N.ITEM_FAILED),
    ),
    "a claim that is given back": (
        given_back,
        (N.APPROVAL_OPENED, N.ITEM_AUTHORIZED, N.ITEM_EXECUTING, N.ITEM_AUTHORIZED),
    ),
    "a doubt and its end": (
        in_doubt,
        (
            N.APPROVAL_OPENED,
            N.ITEM_AUTHORIZED,
            N.ITEM_EXECUTING,
            N.ITEM_IN_DOUBT,
            N.ITEM_RECONCILED,
        ),
    ),
    "a freeze": (frozen, (N.FREEZE_SET, N.FREEZE_LIFTED)),
}
"""Elsewhere: API keys (tests/api), views of a full text (tests/bot), changes of the
policy (tests/stories), and changes of signing keys (test_audit_writing.py)."""


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_is_one_entry(harness: ServiceHarness, kind: str) -> None:
    scene, expected = KINDS[kind]

    await scene(harness)

    assert tuple(one.name for one in await harness.audited()) == expected


async def test_a_refusal_names_person_act_and_reason(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    asked = click.with_(request_digest="sha256:" + "7" * 64)

    outcome = await harness.reviews.decide(asked, Reject(reason="no"), EVE)
    await harness.reviews.decide(click, Approve(), BEN)

    [_, entry, _] = await harness.audited()
    assert isinstance(outcome, Forbidden)
    assert (entry.name, entry.actor) == (N.DECISION_REFUSED, "T0/U0EVE")
    assert (entry.approval, entry.item) == (click.approval, f"{click.approval}.0")
    assert entry.reason == outcome.reason
    assert entry.request_digest == asked.request_digest
    assert entry.data["verb"] == "reject"


@pytest.mark.parametrize(
    "tools",
    [
        ["process_refund"],
        ["wire_money"],
        ["process_refund", "send_email", "process_refund"],
        ["read_mail"],
    ],
    ids="-".join,
)
async def test_the_opening_names_the_requester_and_each_call(
    harness: ServiceHarness, tools: list[str]
) -> None:
    told = POLICY.replace("look_up_order: {tier: auto}", "read_mail: {tier: notify}")
    harness.put_policy(of=told)
    calls: list[tuple[str, JsonObject]] = [
        (tool, {"amount": 120.5 + n}) for n, tool in enumerate(tools)
    ]

    _, verdicts = await harness.submit(*calls)

    [opened] = await harness.audited(EventName.APPROVAL_OPENED)
    assert opened.actor == "T0/U0DAN"
    # With a point, which no hash has.
    assert "120.5" not in opened.model_dump_json()
    found = [
        (it["item"], it["tool"], it["tier"], it["hash"]) for it in calls_of(opened)
    ]
    assert found == [(v.item_id, v.tool, v.tier, v.action_hash) for v in verdicts]
