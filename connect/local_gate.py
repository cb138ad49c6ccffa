"""The gateway in this process, for connectors that `keyturn run` starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from typing_extensions import override

from keyturn.connect.gate import Following, Listing
from keyturn.gateway.api.operations import QUEUES
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol import http_api, wire
from keyturn.gateway.protocol.approval_views import ApprovalPage, EventPage
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.service.run.agents import AgentService, RemoteRunService
from keyturn.gateway.service.run.approval_readings import ApprovalReadings
from keyturn.gateway.store.store import Store
from keyturn.gateway.triage.asking import Triage


class LocalGate(AgentService):
    """The services of one tenant, as a `keyturn.connect.gate.Gate`.

    Close it before the store.

    Args:
        store: the store.
        policy: returns the current policy.
        tenant: the tenant of the connector's agents.
        triage: assesses the calls that the policy selects for it.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], Policy],
        *,
        tenant: str = "default",
        triage: Triage | None = None,
    ) -> None:
        super().__init__(store, policy, tenant=tenant, triage=triage)
        self._feed = EventFeed(store, tenant=tenant)
        self._runs = RemoteRunService(store, self, self._feed, tenant=tenant)
        self._readings = ApprovalReadings(store, policy, tenant=tenant)

    @classmethod
    def of(cls, service: AgentService) -> Self:
        """Return a gate with the store, the policy and the triage of a service."""
        return cls(
            service._store,  # noqa: SLF001 - it is one of its class
            lambda: service.policy_now,
            tenant=service._tenant,  # noqa: SLF001
            triage=service._triage,  # noqa: SLF001
        )

    @override
    async def submit(self, turn: wire.Turn) -> tuple[wire.Verdict, ...]:
        """Evaluate a turn; no worker of the gateway has its thread."""
        return await super().submit(turn.with_(resumes_itself=True))

    async def answers(
        self, question: http_api.AnswersQuestion
    ) -> tuple[http_api.Answered, ...]:
        """Return the decisions; see `Gate.answers`."""
        return await self._runs.answers(question, _any_agent)

    async def withdraw(
        self, run: RunRef, item_ids: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        """Withdraw calls of a run; see `Gate.withdraw`."""
        return await self._runs.withdraw(run, item_ids, resumes=False)

    async def remember(self, facts: http_api.RunFacts) -> None:
        """Record the requester of a run; see `Gate.remember`."""
        await self._runs.remember(facts)

    async def listing(self, asked: Listing) -> ApprovalPage:
        """Return a page of approvals; see `Gate.listing`."""
        agent, state, cursor, limit = asked
        return await self._readings.page(
            _any_agent, states=QUEUES[state], agent=agent, cursor=cursor, limit=limit
        )

    async def events(self, asked: Following) -> EventPage:
        """Return the changes of calls since a place; see `Gate.events`."""
        following = self._feed.following_calls(
            _any_agent, agent=asked.agent, after=asked.after
        )
        async with following as follower:
            return await follower.next(float(asked.wait_s))

    async def aclose(self) -> None:
        """End all waits and stop reading events."""
        self._feed.end_waits()
        await self._feed.aclose()


def _any_agent(_agent: str) -> bool:
    return True
