"""Tests for connectors: write a driver, and run it with each behaviour.

    @pytest.mark.parametrize("behaviour", EXECUTED, ids=name_of)
    async def test_my_connector(behaviour, tmp_path):
        async with Desk.in_folder(tmp_path) as desk:
            await behaviour(desk, MyDriver(desk))

A driver is an agent of the framework with a scripted model and two tools, `Bank.pay`
and `Bank.wipe`. The desk is the gateway with its reviewers. `EXECUTED` is for
connectors that run the calls, and `HANDED_OVER` for connectors whose host runs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from keyturn.connect.gate import Listing
from keyturn.connect.local_gate import LocalGate
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Decided,
    Decision,
    Edit,
    Reconcile,
    Reject,
    Respond,
    Reviewer,
)
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.report.event_feed import EventFeed, Follower
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.store.store import Store, open_store

AGENT = "adapter"
"""The name of the driver's agent."""

POLICY = """\
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: [U0ANA]}
protect: {same_rejected_within: 0, pause_after_rejections: 1000}
tools:
  pay: {tier: approve}
  wipe: {tier: deny}
"""

ANA = Reviewer(team="T0", user="U0ANA", name="Ana", account=AccountKind.MEMBER)

WAIT_S = 30.0
"""Longest wait for one event, in seconds."""


@dataclass(frozen=True)
class Call:
    """One call of the model; ``tool`` is ``pay`` or ``wipe``."""

    amount: int
    to: str = "ada"
    tool: str = "pay"

    @property
    def args(self) -> JsonObject:
        """Return the arguments of the call."""
        return {"amount": self.amount, "to": self.to}


class Bank:
    """The tools of the driver's agent, and a record of their payments.

    Attributes:
        paid: the arguments of each payment, in order.
        begun: set when a payment has begun.
    """

    def __init__(self) -> None:
        self.paid: list[JsonObject] = []
        self.begun = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    async def pay(self, amount: int, to: str) -> str:
        """Pay an amount to a person."""
        self.paid.append({"amount": amount, "to": to})
        self.begun.set()
        await self._open.wait()
        return f"paid {amount} to {to}"

    async def wipe(self, amount: int, to: str) -> str:
        """Delete an account; the policy denies it."""
        return await self.pay(amount, to)

    def block(self) -> None:
        """Block payments that have begun until `unblock`."""
        self._open.clear()

    def unblock(self) -> None:
        """Finish blocked payments."""
        self._open.set()


class Run(Protocol):
    """One turn of the driver's agent."""

    async def outputs(self) -> list[str]:
        """Wait for the end; return the model's text about each call, in order."""
        ...

    async def replay(self) -> list[str]:
        """Run the turn again from its saved state, also at the same time."""
        ...

    async def stop(self) -> None:
        """Kill the first attempt, as if its process had crashed."""
        ...


class HandedOverRun(Run, Protocol):
    """One turn of an agent whose host runs the calls."""

    async def answer_elsewhere(self) -> None:
        """Answer the host's question without the gateway, so that the calls end."""
        ...


class Driver(Protocol):
    """One agent of the connector's framework, with the tools of `Desk.bank`."""

    async def propose(self, calls: Sequence[Call]) -> Run:
        """Make the model propose these calls in one response; do not wait."""
        ...


@dataclass
class Desk:
    """The gateway of a connector under test, its reviewers and its clock."""

    store: Store
    gate: LocalGate
    reviews: ReviewService
    events: Follower
    bank: Bank = field(default_factory=Bank)

    @classmethod
    @asynccontextmanager
    async def on(cls, store: Store, policy: str = POLICY) -> AsyncGenerator[Desk]:
        """Open a desk on a store."""
        rules = load_policy(policy, "policy.yml")
        gate, feed = LocalGate(store, lambda: rules), EventFeed(store, tenant="default")
        reviews = ReviewService(store, lambda: rules)
        async with feed.following(lambda _: True) as events:
            try:
                yield cls(store, gate, reviews, events)
            finally:
                await gate.aclose()

    @classmethod
    @asynccontextmanager
    async def in_folder(cls, folder: Path) -> AsyncGenerator[Desk]:
        """Open a desk on an embedded store with its files in a folder."""
        async with open_store(None, folder) as store, cls.on(store) as desk:
            yield desk

    async def asked(self, calls: int = 1, agent: str = AGENT) -> list[str]:
        """Wait until ``calls`` calls are pending; return their ids in order."""
        while True:
            page = await self.gate.listing(Listing(agent, "pending"))
            found = [call for one in page.approvals for call in one.calls]
            waiting = [call for call in found if call.state is ItemState.PENDING]
            if len(waiting) >= calls:
                waiting.sort(key=lambda call: str(call.args.get("amount")))
                return [call.id for call in waiting]
            await self._event()

    async def reaches(self, item_id: str, *states: ItemState) -> Item:
        """Wait until a call reaches one of these states; return its record."""
        while (item := await self.item(item_id)).state not in states:
            await self._event()
        return item

    async def reopened(self, item_id: str) -> None:
        """Wait until a decided call is pending again."""
        while (item := await self.item(item_id)).revoked is None or not item.is_pending:
            await self._event()

    async def item(self, item_id: str) -> Item:
        """Return the record of a call."""
        approval_id, index = approval_of(item_id)
        loaded = await self.reviews.read(approval_id)
        assert loaded is not None, item_id
        return loaded.approval.items[index]

    async def approve(self, item_id: str) -> None:
        """Approve a call as Ana."""
        await self._decide(item_id, Approve())

    async def edit(self, item_id: str, args: JsonObject, reason: str = "") -> None:
        """Change the arguments of a call as Ana."""
        await self._decide(item_id, Edit(args=args, reason=reason))

    async def reject(self, item_id: str, reason: str = "") -> None:
        """Reject a call as Ana."""
        await self._decide(item_id, Reject(reason=reason))

    async def respond(self, item_id: str, message: str) -> None:
        """Answer a call as Ana, in place of its tool."""
        await self._decide(item_id, Respond(message=message))

    async def reconcile(self, item_id: str, finding: Finding) -> None:
        """Report the outcome of a call in doubt as Ana."""
        await self._decide(item_id, Reconcile(finding=finding))

    async def expire(self, item_id: str) -> None:
        """Move the deadline of a pending call into the past."""
        await self._past(item_id, "expires")

    async def lose(self, item_id: str) -> None:
        """Move the end of a call's lease into the past."""
        await self._past(item_id, f"{approval_of(item_id)[1]}:u")

    async def _decide(self, item_id: str, decision: Decision) -> None:
        item = await self.item(item_id)
        loaded = await self.reviews.read(approval_of(item_id)[0])
        assert loaded is not None
        click = Click(
            approval=loaded.approval.id,
            index=item.index,
            version=loaded.approval.version,
            action_hash=item.action_hash,
        )
        outcome = await self.reviews.decide(click, decision, ANA)
        assert isinstance(outcome, Decided), outcome

    async def _past(self, item_id: str, moment: str) -> None:
        keys, approval_id = (
            self.store.keys_of_tenant("default"),
            approval_of(item_id)[0],
        )
        await self.store.conn.transaction(
            ["HSET", keys.head(approval_id), moment, 1],
            ["ZADD", keys.expiry, 1, keys.listed(approval_id)],
        )
        await Sweeper(self.store).sweep()

    async def _event(self) -> None:
        page = await self.events.next(WAIT_S)
        assert page.events, f"Nothing happened for {WAIT_S:.0f} s."


Behaviour = Callable[[Desk, Driver], Awaitable[None]]
"""A promise of connectors, as a test of one driver."""


def name_of(behaviour: Behaviour) -> str:
    """Return the name of a behaviour, for ``ids=`` of pytest."""
    return behaviour.__name__


async def an_approved_call_runs_once(desk: Desk, driver: Driver) -> None:
    """An approved call runs with its arguments, and the model reads the result."""
    call = Call(5)
    run = await driver.propose([call])
    [item] = await desk.asked()
    assert desk.bank.paid == []
    await desk.approve(item)

    [output] = await run.outputs()

    assert desk.bank.paid == [call.args]
    assert "paid 5 to ada" in output
    await desk.reaches(item, ItemState.EXECUTED)


async def an_edit_is_reported(desk: Desk, driver: Driver) -> None:
    """An edited call runs as edited; the model reads the editor, reason and both."""
    run = await driver.propose([Call(899)])
    [item] = await desk.asked()
    await desk.edit(item, Call(45).args, "the agreed part")

    [output] = await run.outputs()

    assert desk.bank.paid == [Call(45).args]
    for part in ("Ana", "the agreed part", "899", "45", "paid 45 to ada"):
        assert part in output, (part, output)


async def a_rejected_call_does_not_run(desk: Desk, driver: Driver) -> None:
    """A rejected call does not run, and the model reads the reviewer's reason."""
    run = await driver.propose([Call(5)])
    [item] = await desk.asked()
    await desk.reject(item, "a duplicate")

    [output] = await run.outputs()

    assert desk.bank.paid == []
    # A host that runs the calls words the rejection differently.
    assert "did not run" in output or "rejected" in output
    assert "a duplicate" in output


async def a_response_replaces_the_call(desk: Desk, driver: Driver) -> None:
    """The model reads a reviewer's answer instead of the result; nothing runs."""
    run = await driver.propose([Call(5)])
    [item] = await desk.asked()
    await desk.respond(item, "paid by hand")

    [output] = await run.outputs()

    assert desk.bank.paid == []
    assert "paid by hand" in output


async def a_denied_call_does_not_run(desk: Desk, driver: Driver) -> None:
    """A call that the policy denies does not run, and needs no reviewer."""
    run = await driver.propose([Call(5, tool="wipe")])

    [output] = await run.outputs()

    assert desk.bank.paid == []
    assert output
    assert "paid" not in output


async def an_expired_call_does_not_run(desk: Desk, driver: Driver) -> None:
    """An undecided call expires without running, and the model reads the cause."""
    run = await driver.propose([Call(5)])
    [item] = await desk.asked()
    await desk.expire(item)

    [output] = await run.outputs()

    assert desk.bank.paid == []
    assert "did not run" in output


async def three_calls_are_decided_in_any_order(desk: Desk, driver: Driver) -> None:
    """Calls of one response wait together, and each gets its own decision."""
    run = await driver.propose([Call(1), Call(2), Call(3)])
    one, two, three = await desk.asked(3)
    await desk.reject(three, "too much")
    await desk.approve(one)
    await desk.edit(two, Call(20).args)

    first, second, third = await run.outputs()

    assert sorted(desk.bank.paid, key=str) == [Call(1).args, Call(20).args]
    assert "paid 1 to ada" in first
    assert "paid 20 to ada" in second
    assert "too much" in third


async def eight_replays_are_one_effect(desk: Desk, driver: Driver) -> None:
    """Concurrent replays wait for the running attempt, and return the same text."""
    desk.bank.block()
    run = await driver.propose([Call(5)])
    [item] = await desk.asked()
    await desk.approve(item)
    await desk.bank.begun.wait()
    replays = [asyncio.create_task(run.replay()) for _ in range(8)]
    desk.bank.unblock()

    outputs = await run.outputs()

    assert await asyncio.gather(*replays) == [outputs] * 8
    assert desk.bank.paid == [Call(5).args]


async def a_late_replay_gets_the_recorded_result(desk: Desk, driver: Driver) -> None:
    """A replay after the end runs nothing, and returns the recorded result."""
    run = await driver.propose([Call(899)])
    [item] = await desk.asked()
    await desk.edit(item, Call(45).args, "the agreed part")
    outputs = await run.outputs()

    assert await run.replay() == outputs
    assert desk.bank.paid == [Call(45).args]


async def an_attempt_that_timed_out_may_go_on(desk: Desk, driver: Driver) -> None:
    """A second attempt waits for the result of a first one without a claim."""
    desk.bank.block()
    run = await driver.propose([Call(5)])
    [item] = await desk.asked()
    await desk.approve(item)
    await desk.bank.begun.wait()
    await desk.lose(item)
    await desk.reaches(item, ItemState.IN_DOUBT)
    second = asyncio.create_task(run.replay())
    desk.bank.unblock()

    [output] = await run.outputs()

    assert await second == [output]
    assert "paid 5 to ada" in output
    assert desk.bank.paid == [Call(5).args]


async def killed_while_people_decide(desk: Desk, driver: Driver) -> None:
    """A program that is killed during the wait continues with the decision."""
    run = await driver.propose([Call(5)])
    [item] = await desk.asked()
    await run.stop()
    await desk.approve(item)

    [output] = await run.replay()

    assert "paid 5 to ada" in output
    assert desk.bank.paid == [Call(5).args]


async def killed_in_the_effect(desk: Desk, driver: Driver) -> None:
    """An interrupted call waits for the reviewers' finding, and is not run again."""
    desk.bank.block()
    run = await driver.propose([Call(5)])
    [item] = await desk.asked()
    await desk.approve(item)
    await desk.bank.begun.wait()
    await run.stop()
    await desk.lose(item)
    await desk.reaches(item, ItemState.IN_DOUBT)
    desk.bank.unblock()
    again = asyncio.create_task(run.replay())
    await desk.reconcile(item, Finding.EXECUTED)

    [output] = await again

    assert "took effect" in output
    assert desk.bank.paid == [Call(5).args]


async def a_call_answered_elsewhere_is_not_taken(desk: Desk, driver: Driver) -> None:
    """A call that was answered without the gateway ends as not taken."""
    run = await driver.propose([Call(5)])
    [item] = await desk.asked()
    elsewhere: HandedOverRun = run  # type: ignore[assignment]
    await elsewhere.answer_elsewhere()
    await desk.reaches(item, ItemState.WITHDRAWN, ItemState.NOT_TAKEN)


async def a_handed_over_call_is_run_by_its_host(desk: Desk, driver: Driver) -> None:
    """An approved call is handed over once, and never recorded as executed."""
    run = await driver.propose([Call(5)])
    [item] = await desk.asked()
    assert desk.bank.paid == []
    await desk.approve(item)

    [output] = await run.outputs()

    assert desk.bank.paid == [Call(5).args]
    assert "paid 5 to ada" in output
    await desk.reaches(item, ItemState.HANDED_OVER)


_BOTH: list[Behaviour] = [
    a_rejected_call_does_not_run,
    a_response_replaces_the_call,
    a_denied_call_does_not_run,
    an_expired_call_does_not_run,
    three_calls_are_decided_in_any_order,
    killed_while_people_decide,
]

EXECUTED: list[Behaviour] = [
    an_approved_call_runs_once,
    an_edit_is_reported,
    *_BOTH,
    eight_replays_are_one_effect,
    a_late_replay_gets_the_recorded_result,
    an_attempt_that_timed_out_may_go_on,
    killed_in_the_effect,
]
"""For connectors that claim, run and finish calls."""

HANDED_OVER: list[Behaviour] = [
    a_handed_over_call_is_run_by_its_host,
    *_BOTH,
    a_call_answered_elsewhere_is_not_taken,
]
"""For connectors whose host runs the calls. Omit behaviours that it cannot have."""
