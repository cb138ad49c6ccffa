"""Two gateways behind one port, and the actions of people at each of them."""

from __future__ import annotations

from typing import Protocol

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
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.records import Finding, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.store import Store
from tests.agent.fake_gateway import FakeGateway
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


class Backend(Protocol):
    """A gateway, and the people and clocks behind it."""

    @property
    def gateway(self) -> Gateway:
        """Return what an agent talks to."""
        ...

    async def item(self, item_id: str) -> Item:
        """Return the record of a call."""
        ...

    async def approve(self, item_id: str) -> None:
        """Approve a call."""
        ...

    async def edit(self, item_id: str, args: JsonObject) -> None:
        """Edit a call, which approves it."""
        ...

    async def reject(self, item_id: str, reason: str) -> None:
        """Reject a call."""
        ...

    async def respond(self, item_id: str, message: str) -> None:
        """Respond instead of running a call."""
        ...

    async def owner_dies(self, item_id: str) -> None:
        """End the lease of a running call."""
        ...

    async def reconcile(self, item_id: str, finding: Finding) -> None:
        """Reconcile a call in doubt."""
        ...


def harness(store: Store) -> ServiceHarness:
    """Return the services under the policy of these tests."""
    return ServiceHarness(store, load_policy(POLICY, "policy.yml"))


class Fake(Backend):
    """The fake of the agent's tests."""

    def __init__(self) -> None:
        self._fake = FakeGateway(TIERS)

    @property
    @override
    def gateway(self) -> Gateway:
        return self._fake

    @override
    async def item(self, item_id: str) -> Item:
        return self._fake.items[item_id]

    @override
    async def approve(self, item_id: str) -> None:
        self._fake.approve(item_id)

    @override
    async def edit(self, item_id: str, args: JsonObject) -> None:
        self._fake.edit(item_id, args)

    @override
    async def reject(self, item_id: str, reason: str) -> None:
        self._fake.reject(item_id, reason)

    @override
    async def respond(self, item_id: str, message: str) -> None:
        self._fake.respond(item_id, message)

    @override
    async def owner_dies(self, item_id: str) -> None:
        self._fake.lose_owner(item_id)

    @override
    async def reconcile(self, item_id: str, finding: Finding) -> None:
        self._fake.reconcile(item_id, finding)


class Real(Backend):
    """The service on a real store."""

    def __init__(self, store: Store) -> None:
        self._desk = harness(store)

    @property
    @override
    def gateway(self) -> Gateway:
        return self._desk.agents

    @override
    async def item(self, item_id: str) -> Item:
        return await self._desk.item(item_id)

    @override
    async def approve(self, item_id: str) -> None:
        await self._decide(item_id, Approve())

    @override
    async def edit(self, item_id: str, args: JsonObject) -> None:
        await self._decide(item_id, Edit(args=args))

    @override
    async def reject(self, item_id: str, reason: str) -> None:
        await self._decide(item_id, Reject(reason=reason))

    @override
    async def respond(self, item_id: str, message: str) -> None:
        await self._decide(item_id, Respond(message=message))

    @override
    async def owner_dies(self, item_id: str) -> None:
        await self._desk.owner_dies(item_id)
        await self._desk.sweeper.sweep()

    @override
    async def reconcile(self, item_id: str, finding: Finding) -> None:
        await self._decide(item_id, Reconcile(finding=finding))

    async def _decide(self, item_id: str, decision: Decision) -> None:
        click = await self._desk.click_on(item_id)
        outcome = await self._desk.reviews.decide(click, decision, ANA)
        assert isinstance(outcome, Decided)


class OverHttp(Real):
    """The service on a real store, asked over HTTP."""

    def __init__(self, store: Store, gateway: HttpGateway) -> None:
        super().__init__(store)
        self._http = gateway

    @property
    @override
    def gateway(self) -> Gateway:
        return self._http
