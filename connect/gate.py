"""The interface of a gateway for connectors, and a client for a gateway at a URL.

Agents use a port that proposes and runs calls. A connector also waits for people, names
the requester, withdraws calls that its framework dropped, and finds its open calls
after a restart. `keyturn.connect.local_gate` does the same in the gateway's process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, NamedTuple, Protocol

from pydantic import TypeAdapter

from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.protocol import BASE, http_api, wire
from keyturn.gateway.protocol.approval_views import (
    PAGE,
    ApprovalPage,
    ApprovalView,
    EventPage,
)
from keyturn.gateway.protocol.http_api import HandingGateway
from keyturn.gateway.protocol.records import RunRef

Queue = Literal[
    "pending", "authorized", "executing", "handing_over", "ask_again", "open"
]
"""States of calls in a listing; ``open`` includes all of them."""

_PAGE_OF_APPROVALS = TypeAdapter(ApprovalPage)
_PAGE_OF_EVENTS = TypeAdapter(EventPage)


class Listing(NamedTuple):
    """A question for the approvals that have a call in a state.

    Attributes:
        agent: only approvals of this agent; "" for all.
        state: state of at least one call.
        cursor: ``next`` of the previous page.
        limit: largest number of approvals in the page.
    """

    agent: str = ""
    state: Queue = "open"
    cursor: str = ""
    limit: int = PAGE


class Following(NamedTuple):
    """A question for the changes of calls since a place.

    Attributes:
        agent: only events of this agent; "" for all.
        after: ``next`` of the previous page; "" begins with new events.
        wait_s: seconds to wait for the first event, 60 at most.
    """

    agent: str = ""
    after: str = ""
    wait_s: int = 0


class Gate(HandingGateway, Protocol):
    """A gateway for connectors.

    Every method raises `keyturn.gateway.errors.KeyturnError` when the gateway cannot
    answer, and may be called from any event loop.
    """

    async def report_outcome(self, report: wire.ReportedOutcome) -> bool:
        """Record a program's report on a call that was handed to it.

        Only the first report counts. Returns False for later reports, and for a call
        that the program did not take.
        """
        ...

    async def answers(
        self, question: http_api.AnswersQuestion
    ) -> tuple[http_api.Answered, ...]:
        """Return the decisions; wait up to ``wait_s`` seconds for the first one."""
        ...

    async def withdraw(
        self, run: RunRef, item_ids: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        """Withdraw calls of a run that have not started; None: all of them.

        Returns:
            The ids of the calls that were withdrawn.
        """
        ...

    async def attend(self, asked: http_api.Attendance) -> http_api.Attended:
        """Report for how long a caller waits for a held call; the card shows it."""
        ...

    async def remember(self, facts: http_api.RunFacts) -> None:
        """Record the requester of a run, who cannot approve its calls."""
        ...

    async def definitions(
        self, asked: http_api.DefinitionsQuestion
    ) -> http_api.Definitions:
        """Return the approved definitions of a server's tools."""
        ...

    async def keep_definitions(self, item_id: str, fence: int) -> bool:
        """Store the definitions of a claimed call; return False if the claim is lost.

        The call is one of `DEFINITIONS_TOOL`.
        """
        ...

    async def listing(self, asked: Listing) -> ApprovalPage:
        """Return a page of approvals."""
        ...

    async def events(self, asked: Following) -> EventPage:
        """Return the changes of calls since a place."""
        ...


async def each_listed(gate: Gate, asked: Listing) -> AsyncGenerator[ApprovalView]:
    """Yield the approvals of all pages of a listing."""
    while True:
        page = await gate.listing(asked)
        for approval in page.approvals:
            yield approval
        if not page.next:
            return
        asked = asked._replace(cursor=page.next)


class HttpGate(HttpGateway):
    """A gateway at a URL, for connectors; see `Gate` and `HttpGateway`."""

    async def attend(self, asked: http_api.Attendance) -> http_api.Attended:
        """Report for how long a caller waits; see `Gate.attend`."""
        return await self.connection.ask(http_api.ATTEND, asked)

    async def definitions(
        self, asked: http_api.DefinitionsQuestion
    ) -> http_api.Definitions:
        """Return the approved definitions; see `Gate.definitions`."""
        return await self.connection.ask(http_api.DEFINITIONS, asked)

    async def keep_definitions(self, item_id: str, fence: int) -> bool:
        """Keep approved definitions; see `Gate.keep_definitions`."""
        question = http_api.ClaimedCall(item_id=item_id, fence=fence)
        return await self.connection.ask(http_api.KEEP_DEFINITIONS, question)

    async def listing(self, asked: Listing) -> ApprovalPage:
        """Return a page of approvals; see `Gate.listing`."""
        query = {name: str(value) for name, value in asked._asdict().items()}
        return await self.connection.read(
            f"{BASE}/approvals", query, _PAGE_OF_APPROVALS
        )

    async def events(self, asked: Following) -> EventPage:
        """Return the changes of calls since a place; see `Gate.events`."""
        query = {"agent": asked.agent, "after": asked.after, "wait": str(asked.wait_s)}
        return await self.connection.read(
            f"{BASE}/events", query, _PAGE_OF_EVENTS, wait_s=asked.wait_s
        )
