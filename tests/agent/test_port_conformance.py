"""The fake gateway, the real one and the real one over HTTP keep the same promises."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest
from typing_extensions import override

from keyturn.gateway.approvals.decisions import (
    Approve,
    Decided,
    Decision,
    Edit,
    Reconcile,
    Reject,
    Respond,
)
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import digest, wire
from keyturn.gateway.protocol.edits import edit_hash
from keyturn.gateway.protocol.http_api import Gateway
from keyturn.gateway.protocol.records import Finding, ItemState, Result, RunRef, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    Busy,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Done,
    InDoubt,
    ProposedCall,
    Refused,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from keyturn.gateway.service.run.claiming import told_edit
from keyturn.gateway.store.store import Store
from tests.agent.fake_gateway import FakeGateway
from tests.api.api_stack import serving
from tests.service.harness import ANA, ServiceHarness

TIERS = {"look_up": Tier.AUTO, "pay": Tier.APPROVE, "drop_table": Tier.DENY}
POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: [U0ANA]}
protect: {same_rejected_within: 0, pause_after_rejections: 1000}
tools:
  look_up: {tier: auto}
  pay: {tier: approve}
  drop_table: {tier: deny}
"""


def harness(store: Store) -> ServiceHarness:
    """Return the services under the policy of these tests."""
    return ServiceHarness(store, load_policy(POLICY, "policy.yml"))


class Backend:
    """The service on a real store, perhaps over HTTP, and the people behind it."""

    def __init__(self, store: Store, over_http: HttpGateway | None = None) -> None:
        self._desk = harness(store)
        self.gateway: Gateway = over_http or self._desk.agents

    async def item(self, item_id: str) -> Item:
        """Return the record of a call."""
        return await self._desk.item(item_id)

    async def decide(self, item_id: str, decision: Decision) -> None:
        """Decide a call."""
        click = await self._desk.click_on(item_id)
        outcome = await self._desk.reviews.decide(click, decision, ANA)
        assert isinstance(outcome, Decided)

    async def owner_dies(self, item_id: str) -> None:
        """End the lease of a running call."""
        await self._desk.owner_dies(item_id)
        await self._desk.sweeper.sweep()


class Fake(Backend):
    """The fake of the agent's tests."""

    def __init__(self) -> None:
        self.gateway = self._fake = FakeGateway(TIERS)

    @override
    async def item(self, item_id: str) -> Item:
        return self._fake.items[item_id]

    @override
    async def decide(self, item_id: str, decision: Decision) -> None:
        match decision:
            case Approve():
                self._fake.approve(item_id)
            case Edit(args=args):
                self._fake.edit(item_id, args)
            case Reject(reason=reason):
                self._fake.reject(item_id, reason)
            case Respond(message=message):
                self._fake.respond(item_id, message)
            case Reconcile(finding=finding):
                self._fake.reconcile(item_id, finding)

    @override
    async def owner_dies(self, item_id: str) -> None:
        self._fake.lose_owner(item_id)


Call = tuple[str, JsonObject, str]
PAY: Call = ("pay", {"amount": 10, "to": "ada"}, "c1")
PAY_BOB: Call = ("pay", {"amount": 5, "to": "bob"}, "c2")
HALF: JsonObject = {"amount": 5, "to": "ada"}
PAID = Result(ok=True, summary="paid")
RUN_REF = RunRef(agent="support", thread="t1")


@pytest.fixture(params=["fake", "service", "http"])
async def backend(
    request: pytest.FixtureRequest, store: Store
) -> AsyncGenerator[Backend]:
    if request.param == "fake":
        yield Fake()
    elif request.param == "service":
        yield Backend(store)
    else:
        # Of every agent, as the gateway in one process is.
        async with (
            serving(harness(store)) as api,
            api.gateway(api.key(agents=["*"])) as gateway,
        ):
            yield Backend(store, gateway)


@pytest.fixture
def gateway(backend: Backend) -> Gateway:
    return backend.gateway


@dataclass(frozen=True)
class Held:
    """One call that was submitted alone, and how to claim it."""

    gateway: Gateway
    verdict: Verdict
    request: ClaimRequest

    @property
    def id(self) -> str:
        return self.verdict.item_id

    async def claim(self, **changes: object) -> ClaimReply:
        return await self.gateway.claim(self.request.with_(**changes))

    async def run(self) -> Claimed:
        """Claim it as its executor does."""
        reply = await self.claim()
        assert isinstance(reply, Claimed)
        return reply


def at(
    message: str = "m1", *, agent: str = "support", thread: str = "t1", ns: str = ""
) -> TurnRef:
    return TurnRef(agent=agent, thread=thread, ns=ns, message_id=message)


def turn(*calls: Call, ref: TurnRef | None = None) -> Turn:
    proposed = [
        ProposedCall(tool=tool, args=args, tool_call_id=call_id)
        for tool, args, call_id in calls
    ]
    return Turn(ref=ref or at(), calls=tuple(proposed))


async def held(gateway: Gateway, call: Call = PAY, ref: TurnRef | None = None) -> Held:
    asked = turn(call, ref=ref)
    (verdict,) = await gateway.submit(asked)
    request = ClaimRequest(
        item_id=verdict.item_id,
        ref=asked.ref,
        tool=verdict.tool,
        tool_call_id=verdict.tool_call_id,
        owner="0" * 32,
    )
    return Held(gateway, verdict, request)


async def test_a_verdict_names_tier_arguments_and_hash(backend: Backend) -> None:
    calls: list[Call] = [
        ("look_up", {"q": "ada"}, "c0"),
        PAY,
        ("drop_table", {"name": "x"}, "c3"),
    ]

    verdicts = await backend.gateway.submit(turn(*calls))

    run, hold, deny = verdicts
    assert [one.tool_call_id for one in verdicts] == ["c0", "c1", "c3"]
    assert [one.args_hash for one in verdicts] == [
        wire.args_hash(args) for _, args, _ in calls
    ]
    assert (run.kind, run.item_id) == (VerdictKind.RUN, "")
    assert (deny.kind, deny.item_id) == (VerdictKind.DENY, "")
    assert deny.reason
    assert hold.kind is VerdictKind.HOLD
    item = await backend.item(hold.item_id)
    assert item.is_pending
    assert hold.action_hash == digest.action_hash(item.action)
    assert item.args == PAY[1]


async def test_a_repeated_turn_gets_the_same_verdicts(gateway: Gateway) -> None:
    first = await gateway.submit(turn(PAY, PAY_BOB))

    again = await gateway.submit(turn(PAY, PAY_BOB))

    assert again == first
    assert len(await gateway.outcomes(at())) == 2


@pytest.mark.parametrize("by", ["a newer turn", "the agent"])
async def test_an_older_turn_is_superseded(gateway: Gateway, by: str) -> None:
    old = await held(gateway)

    if by == "a newer turn":
        await gateway.submit(turn(PAY_BOB, ref=at("m2")))
    else:
        await gateway.supersede(at())

    (outcome,) = await gateway.outcomes(at())
    reply = await old.claim()
    assert outcome.state is ItemState.SUPERSEDED
    assert isinstance(reply, Refused)
    assert reply.state is ItemState.SUPERSEDED


async def test_a_call_that_nobody_approved_is_refused(gateway: Gateway) -> None:
    call = await held(gateway)

    assert isinstance(await call.claim(), Refused)
    assert isinstance(await call.claim(item_id="ap_default_none.0"), Refused)


@pytest.mark.parametrize(
    "changes",
    [
        {"tool": "look_up"},
        {"tool_call_id": "c9"},
        {"ref": at("m9")},
        {"ref": at(thread="t2")},
        {"ref": at(agent="other")},
        {"ref": at(ns="inner")},
    ],
)
async def test_an_approved_call_is_not_claimed_as_another_one(
    backend: Backend, gateway: Gateway, changes: dict[str, object]
) -> None:
    call = await held(gateway)
    await backend.decide(call.id, Approve())

    assert isinstance(await call.claim(**changes), Refused)
    assert isinstance(await call.claim(), Claimed)


async def test_an_approved_call_claims_once(backend: Backend, gateway: Gateway) -> None:
    call = await held(gateway)
    await backend.decide(call.id, Approve())

    claimed, second = await call.run(), await call.claim(owner="1" * 32)

    item = await backend.item(call.id)
    assert claimed.action == item.action
    assert claimed.action_hash == call.verdict.action_hash == item.action_hash
    assert claimed.edit is None
    assert claimed.idempotency_key
    assert claimed.lease_s > 0
    assert isinstance(second, Busy)
    assert second.retry_after_s > 0


async def test_only_its_holder_ends_a_claim(backend: Backend, gateway: Gateway) -> None:
    call = await held(gateway)
    await backend.decide(call.id, Approve())
    fence = (await call.run()).fence

    assert await gateway.heartbeat(call.id, fence)
    assert not await gateway.heartbeat(call.id, fence + 1)
    assert not await gateway.finish(call.id, fence + 1, PAID)
    assert await gateway.finish(call.id, fence, PAID)
    assert not await gateway.heartbeat(call.id, fence)

    done = await call.claim()
    assert isinstance(done, Done)
    assert (done.result.ok, done.result.summary) == (True, "paid")


async def test_a_claim_that_is_given_back_is_claimed_anew_under_a_later_fence(
    backend: Backend, gateway: Gateway
) -> None:
    call = await held(gateway)
    await backend.decide(call.id, Approve())
    first = await call.run()

    await gateway.release(call.id, first.fence)
    second = await call.run()
    await gateway.release(call.id, first.fence)

    assert second.fence > first.fence
    assert second.idempotency_key == first.idempotency_key
    assert await gateway.heartbeat(call.id, second.fence)
    assert not await gateway.finish(call.id, first.fence, PAID)


async def test_a_rejection_has_its_words(backend: Backend, gateway: Gateway) -> None:
    rejected = await held(gateway)
    await backend.decide(rejected.id, Reject(reason="not today"))
    answered = await held(gateway, PAY_BOB, at("m2"))
    await backend.decide(answered.id, Respond(message="ask Ben"))

    for call, state, words in (
        (rejected, ItemState.REJECTED, "not today"),
        (answered, ItemState.ANSWERED, "ask Ben"),
    ):
        (outcome,) = await gateway.outcomes(call.request.ref)
        reply = await call.claim()
        assert isinstance(reply, Refused)
        assert reply.state is outcome.state is state
        assert outcome.answer
        assert words in outcome.answer.model_dump_json()


async def test_an_edit_that_ran_is_history(backend: Backend, gateway: Gateway) -> None:
    call = await held(gateway)
    await backend.decide(call.id, Edit(args=HALF))

    claimed = await call.run()
    before = await gateway.history(RUN_REF)
    await gateway.finish(call.id, claimed.fence, PAID)

    item = await backend.item(call.id)
    assert item.args == HALF
    assert claimed.edit
    assert claimed.edit.with_(seal="") == item.edit
    assert claimed.action_hash == item.action_hash != call.verdict.action_hash
    assert before == ()
    [told] = await gateway.history(RUN_REF)
    assert told.with_(seal="") == told_edit(item)
    assert await gateway.history(RUN_REF.with_(thread="t2")) == ()


async def test_only_recorded_edits_are_told(backend: Backend, gateway: Gateway) -> None:
    call = await held(gateway)
    await backend.decide(call.id, Edit(args=HALF))
    edit = (await backend.item(call.id)).edit
    assert edit
    true, forged = edit_hash(edit), edit_hash(edit.with_(reason="because"))
    asked = {true: call.id, forged: call.id}

    here = await gateway.edits_known(at(""), asked)
    elsewhere = await gateway.edits_known(at("", thread="t2"), asked)

    assert set(here.made) == {true}
    assert not here.unknown
    assert elsewhere.made == {}


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (Finding.EXECUTED, ItemState.EXECUTED),
        (Finding.SKIP, ItemState.FAILED),
        (Finding.RERUN, ItemState.AUTHORIZED),
    ],
)
async def test_a_call_whose_owner_died_waits_for_what_people_find(
    backend: Backend, gateway: Gateway, finding: Finding, state: ItemState
) -> None:
    call = await held(gateway)
    await backend.decide(call.id, Approve())
    first = await call.run()
    await backend.owner_dies(call.id)

    in_doubt = await call.claim()
    late = await gateway.finish(call.id, first.fence - 1, PAID)
    await backend.decide(call.id, Reconcile(finding=finding))

    (outcome,) = await gateway.outcomes(at())
    after = await call.claim()
    assert isinstance(in_doubt, InDoubt)
    assert not late
    assert outcome.state is state
    if finding is Finding.RERUN:
        assert isinstance(after, Claimed)
        assert after.fence > first.fence
        assert after.reconciled
    else:
        assert isinstance(after, Done)
        assert after.result.ok == (finding is Finding.EXECUTED)
        assert after.reconcile_answer == outcome.reconcile_answer
        assert after.reconciled == outcome.reconciled
    assert await gateway.late_reports(at(), [call.id]) == ()


async def test_the_note_names_the_tools_that_need_people(gateway: Gateway) -> None:
    note = await gateway.note("support")

    assert note.gated_tools == ("pay",)
    assert note.other_tools_are_gated
