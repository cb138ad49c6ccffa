"""Harness of the services: one store, a policy and a submitted refund."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Decision,
    GestureOutcome,
    Outcome,
    Reviewer,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.gestures import Partition
from keyturn.gateway.approvals.record import Approval, Item, approval_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Person, Result, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    Claimed,
    ClaimRequest,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
)
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.store.connection.servers import Argument, Reply
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.history import use_of
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store
from tests.streams import announced, audit_entries

POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: support}
roles:
  support: {users: [U0ANA, U0BEN, U0DAN]}
  senior: {users: [U0CHLOE]}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior}]}
tiers:
  escalate: {needs: with_senior}
protect:
  pending_per_agent: 10000
  requests_per_10m: 100000
  same_rejected_within: 0
  pause_after_rejections: 1000
tools:
  look_up_order: {tier: auto}
  process_refund: {tier: approve}
  send_email: {tier: approve, idempotent: true}
  wire_money: {tier: escalate}
  drop_table: {tier: deny}
"""
RULES = load_policy(POLICY, "policy.yml")
TENANTS = ("hooli", "default", "acme")
"""Each on another master of a cluster of three."""
DAN = Person(team="T0", user="U0DAN", name="Dan")
RAN = Result(ok=True)


def person(user: str) -> Reviewer:
    """Return a member of the workspace as the bot resolves them."""
    return Reviewer(team="T0", user=user, name=user[2:], account=AccountKind.MEMBER)


ANA, BEN, CHLOE, EVE = map(person, ["U0ANA", "U0BEN", "U0CHLOE", "U0EVE"])


@dataclass
class ServiceHarness:
    """Agents and reviewers of one store, under one policy that may change."""

    store: Store
    policy: Policy = RULES
    tenant: str = "default"

    def __post_init__(self) -> None:
        store, tenant = self.store, self.tenant
        self.agents = AgentService(store, lambda: self.policy, tenant=tenant)
        self.reviews = ReviewService(store, lambda: self.policy, tenant=tenant)
        self.sweeper = Sweeper(store, tenant=tenant)
        self._count = itertools.count()

    async def submit(
        self,
        *calls: tuple[str, JsonObject],
        thread: str = "t1",
        message_id: str | None = None,
        ns: str = "",
        agent: str = "support",
        handed_to: str = "",
    ) -> tuple[TurnRef, tuple[Verdict, ...]]:
        """Submit one turn asked for by Dan; a new message id unless one is given."""
        message = message_id or f"m{next(self._count)}"
        ref = TurnRef(agent=agent, thread=thread, ns=ns, message_id=message)
        await self.asked_by(DAN, thread, agent)
        proposed = tuple(
            ProposedCall(tool=tool, args=args, tool_call_id=f"c{index}")
            for index, (tool, args) in enumerate(calls)
        )
        turn = Turn(ref=ref, calls=proposed, handed_to=handed_to)
        return ref, await self.agents.submit(turn)

    async def asked_by(
        self, person: Person, thread: str = "t1", agent: str = "support"
    ) -> None:
        """Note who asked the agent in a thread."""
        facts = ThreadFacts(requester=person)
        await self.store.threads.change(
            self.keys, agent, thread, lambda _: facts, why="aside"
        )

    async def refund(
        self, amount: float = 899, thread: str = "t1"
    ) -> tuple[Click, ClaimRequest]:
        """Submit one refund; return a click on it and the claim it needs."""
        ref, verdicts = await self.submit(
            ("process_refund", {"amount": amount}), thread=thread
        )
        return await self.click(verdicts[0]), claim_of(ref, verdicts[0])

    async def click(self, verdict: Verdict) -> Click:
        """Return a click on a held call in its current version."""
        return await self.click_on(verdict.item_id)

    @property
    def keys(self) -> Keys:
        """Return the keys of the tenant."""
        return self.store.keys_of_tenant(self.tenant)

    async def command(self, *words: Argument) -> Reply:
        """Send a command to the store, past the services."""
        return await self.store.conn.command(*words)

    async def audited(self, *names: EventName) -> list[Event]:
        """Return the entries of the audit log; only those of some names, if given."""
        entries = await audit_entries(self.store.conn, self.keys)
        return [one for one in entries if not names or one.name in names]

    async def announced(self, *names: EventName) -> list[Event]:
        """Return the events for readers; only those of some names, if given."""
        events = await announced(self.store.conn, self.keys)
        return [one for one in events if not names or one.name in names]

    def put_policy(self, *changes: tuple[str, str], of: str = POLICY) -> None:
        """Put a policy in force: a text, with some of its parts replaced."""
        for old, new in changes:
            assert old in of
            of = of.replace(old, new, 1)
        self.policy = load_policy(of, "policy.yml")

    async def approved(self, amount: float = 899, thread: str = "t1") -> ClaimRequest:
        """Submit one refund, and approve it as Ana; return the claim of its call."""
        click, claim = await self.refund(amount, thread)
        await self.reviews.decide(click, Approve(), ANA)
        return claim

    async def granted(self, claim: ClaimRequest) -> Claimed:
        """Claim a call that may run."""
        reply = await self.agents.claim(claim)
        assert isinstance(reply, Claimed), reply
        return reply

    async def ran(self, claim: ClaimRequest, result: Result = RAN) -> Claimed:
        """Claim a call that may run, and report its result."""
        granted = await self.granted(claim)
        assert await self.agents.finish(claim.item_id, granted.fence, result)
        return granted

    async def doubt(self, item_id: str) -> None:
        """Let a claim end by itself, as after the death of its owner."""
        await self.owner_dies(item_id)
        await self.sweeper.sweep()

    async def decide(
        self, call: Verdict | str, decision: Decision, by: Reviewer = ANA
    ) -> Outcome:
        """Decide a call, of a verdict or by its id, in its current version."""
        item_id = call if isinstance(call, str) else call.item_id
        click = await self.click_on(item_id)
        return await self.reviews.decide(click, decision, by, voters=still_members)

    async def decide_card(
        self, seen: Approval, partition: Partition, by: Reviewer = ANA
    ) -> GestureOutcome:
        """Decide calls of a card as they were seen, over its record as it is now."""
        click = Click(
            approval=seen.id, index=0, version=seen.version, action_hash=seen.digest
        )
        loaded = await self.reviews.read(seen.id)
        assert loaded
        return await self.reviews.decide_card(loaded.approval, click, partition, by)

    async def click_on(self, item_id: str) -> Click:
        """Return a click on an item in its current version."""
        item, approval = await self.item(item_id), await self.approval(item_id)
        return Click(
            approval=approval.id,
            index=item.index,
            version=approval.version,
            action_hash=item.action_hash,
        )

    async def approval(self, item_id: str) -> Approval:
        """Read the approval of an item."""
        loaded = await self.reviews.read(approval_of(item_id)[0])
        assert loaded
        return loaded.approval

    async def item(self, item_id: str) -> Item:
        """Read an item."""
        approval = await self.approval(item_id)
        return approval.items[approval_of(item_id)[1]]

    async def opened(self) -> list[str]:
        """Return the approvals of the agent's first thread, oldest first."""
        run_ref = RunRef(agent="support", thread="t1")
        listed = await self.store.approvals.of_run(self.keys, run_ref)
        return [one.id for one in listed]

    async def overdue(self, approval_id: str) -> None:
        """Move the clock past an approval's deadline."""
        await self._past(approval_id, "expires")

    async def owner_dies(self, item_id: str) -> None:
        """Move the clock past a claim's lease."""
        approval_id, index = approval_of(item_id)
        await self._past(approval_id, f"{index}:u")

    async def lapsed(self, item_id: str) -> None:
        """Move the clock: an authorization is too old to be used."""
        approval_id, index = approval_of(item_id)
        await self._past(approval_id, f"{index}:l")

    async def _past(self, approval_id: str, field_: str) -> None:
        """Put a moment of a record into the past."""
        await self.store.conn.transaction(
            ["HSET", self.keys.head(approval_id), field_, 1],
            ["ZADD", self.keys.expiry, 1, self.keys.listed(approval_id)],
        )

    async def total(self, window: str, resource: str) -> int:
        """Return the current sum of a window for a resource, in millionths."""
        key = self.keys.window(window, resource)
        peek = use_of(key, name=window, call="peek", micro=0, within_ms=1)
        none = self.keys.head("none")
        return (await self.store.windows.totals(none, 0, [peek]))[window]

    async def jobs(self) -> int:
        """Count the resume jobs that wait."""
        return await self.store.queue(self.keys).depth()


async def still_members(item: Item) -> list[Reviewer]:
    """Resolve the voters: all are still members."""
    return [person(vote.by.user) for vote in item.votes]


def claim_of(ref: TurnRef, verdict: Verdict, owner: str = "0" * 32) -> ClaimRequest:
    """Return the claim that a held call's executor would make."""
    return ClaimRequest(
        item_id=verdict.item_id,
        ref=ref,
        tool=verdict.tool,
        tool_call_id=verdict.tool_call_id,
        owner="0" * 32,
    ).with_(owner=owner)
