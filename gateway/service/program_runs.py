"""Serve runs that are driven by programs, in the gateway's process or another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.evidence import redacted
from keyturn.gateway.approvals.record import Approval, Item, Origin, approval_of
from keyturn.gateway.approvals.timing import end_of, is_late
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import GraphError, LeaseLost, NotAllowed
from keyturn.gateway.protocol.http_api import (
    Answered,
    AnswersQuestion,
    LeaseQuestion,
    LeaseRef,
    LeaseReply,
    PendingCall,
    RunFacts,
)
from keyturn.gateway.protocol.records import NO_SLACK_ID, ItemState, RunRef
from keyturn.gateway.service.agents import AgentService
from keyturn.gateway.service.answering import find_answers
from keyturn.gateway.service.event_feed import EventFeed
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.store.atomic_write import Loaded
from keyturn.gateway.store.fences import Lease
from keyturn.gateway.store.jobs import Job
from keyturn.gateway.store.store import Store
from keyturn.gateway.store.threads import REACH, ThreadFacts, Why

logger = logging.getLogger(__name__)

LOOK_S = 15.0
"""Seconds without an event after which the records are read anyway. A wait may end
without an event, for example after a restore of the store."""

_LONGEST = 200
"""Most characters of an id or name from Slack: it is read and stored with each call of
the thread."""

_REQUEST_S = 3600.0
"""Most seconds that one request may rely on a lease; its real end is in the store."""

_UNSTARTED = {ItemState.PENDING, ItemState.AUTHORIZED}

MayBe = Callable[[str], bool]
"""Returns whether the caller may act for an agent."""


class RunCalls(TenantService):
    """The calls of a tenant's runs that have not started.

    Args:
        store: where the approvals are.
        agents: ends the calls.
        tenant: whose runs these are.
    """

    _why: Why = "begin"

    def __init__(
        self, store: Store, agents: AgentService, *, tenant: str = "default"
    ) -> None:
        super().__init__(store, tenant=tenant)
        self._agents = agents

    async def remember(self, facts: RunFacts) -> None:
        """Record the requester of a run and its place; earlier people stay recorded.

        Raises:
            NotAllowed: when only half of a Slack place is given, the requester has no
                Slack user id, or a name is too long.
            TooManySpeakers: when the thread has more people than the store can record.
        """
        if bool(facts.channel) is not bool(facts.thread_ts):
            raise NotAllowed("Give both 'channel' and 'thread_ts', or neither.")
        if facts.requester is None and not facts.channel:
            return
        if facts.requester is not None and not facts.requester.has_slack_id:
            raise NotAllowed(f"'requester' is {facts.requester.user!r}. {NO_SLACK_ID}")
        asker = facts.requester
        names = (asker.team, asker.user, asker.name) if asker is not None else ()
        if any(len(it) > _LONGEST for it in (*names, facts.channel, facts.thread_ts)):
            raise NotAllowed(
                f"Ids and names of a person and a place have {_LONGEST} characters at "
                "most."
            )
        origin = Origin(channel=facts.channel, thread_ts=facts.thread_ts)

        def asked(before: ThreadFacts) -> ThreadFacts:
            after = before
            if facts.requester is not None:
                after = before.asked_by(facts.requester)
            return after.with_(origin=origin) if facts.channel else after

        run = facts.run
        place = (self._keys, run.agent, run.thread)
        await self._store.threads.change(*place, asked, why=self._why)

    async def pending(self, run: RunRef) -> tuple[PendingCall, ...]:
        """Return the calls of a run that wait for people, oldest first."""
        return tuple(
            _shown(loaded.approval, item)
            for loaded in await self._unfinished(run)
            for item in loaded.approval.items
            # An overdue call cannot be decided, even before a sweep has ended it.
            if item.is_pending and not is_late(loaded.approval, item, loaded.now_ms)
        )

    async def withdraw(
        self,
        run: RunRef,
        item_ids: Collection[str] | None = None,
        *,
        resumes: bool = True,
    ) -> tuple[str, ...]:
        """End calls of a run that wait or have not started.

        The agent's result is that they were withdrawn and did not run.

        Args:
            run: the run.
            item_ids: the calls to end; None ends all that wait for people or that
                people approved. Ids of other calls are ignored.
            resumes: queue a job that resumes the agent.

        Returns:
            The ids of the calls that were withdrawn.
        """
        chosen = [
            item.id
            for loaded in await self._unfinished(run)
            for item in loaded.approval.items
            if item.state in _UNSTARTED
            and not is_late(loaded.approval, item, loaded.now_ms)
            and (not item.is_auto_approved if item_ids is None else item.id in item_ids)
        ]
        if not chosen:
            return ()
        await self._agents.withdraw(frozenset(chosen))
        if resumes:
            job = Job.to_resume(self._tenant, run.agent, run.thread)
            # Queued after the calls have ended, so that the agent is not resumed too
            # early. A second job for the same thread is harmless.
            await self._store.queue(self._keys).put(job)
        return await self._ended_of(chosen)

    async def settle(
        self, run: RunRef, asked: Collection[str], *, is_finished: bool
    ) -> None:
        """Withdraw the calls that a paused thread no longer asks about.

        Another middleware dropped them. While the thread waits for an answer, an
        authorized item may belong to a tool that asks the question inside, so only
        pending items end.
        """
        ends = _UNSTARTED if is_finished else {ItemState.PENDING}
        dropped = frozenset(
            item.id
            for approval in await self.droppable(run, asked)
            for item in approval.items
            if item.state in ends and item.id not in asked
        )
        if dropped:
            logger.warning(
                "items.dropped agent=%s thread=%s items=%s",
                run.agent,
                run.thread,
                ",".join(sorted(dropped)),
            )
            await self._agents.withdraw(dropped)

    async def droppable(self, run: RunRef, asked: Collection[str]) -> list[Approval]:
        """Return the run's unfinished approvals, except those a paused task may need.

        A task that runs several agents at once shows the question of one; the others
        ask when it is entered again.
        """
        found = [one.approval for one in await self._unfinished(run)]
        asking = {one.ns for one in found if any(i.id in asked for i in one.items)}
        paused = {_task(ns) for ns in asking if ns}
        return [one for one in found if one.ns in asking or _task(one.ns) not in paused]

    async def _unfinished(self, run: RunRef) -> list[Loaded]:
        approvals = self._store.approvals
        ids = await approvals.unfinished_of_run(self._keys, run)
        return await approvals.load_each(ids)

    async def _ended_of(self, chosen: Sequence[str]) -> tuple[str, ...]:
        """Return the chosen calls that are withdrawn.

        A call that was approved and started concurrently is not among them.
        """
        # Read from the records: a call that no longer waits may have been approved.
        ids = dict.fromkeys(approval_of(item_id)[0] for item_id in chosen)
        ended = {
            item.id
            for loaded in await self._store.approvals.load_each(ids)
            for item in loaded.approval.items
            if item.state is ItemState.WITHDRAWN
        }
        return tuple(one for one in chosen if one in ended)


def _task(ns: str) -> str:
    """Return the task of the run's outermost graph that contains a namespace."""
    return ns.partition("|")[0]


def _shown(approval: Approval, item: Item) -> PendingCall:
    return PendingCall(
        item_id=item.id,
        tool=item.tool,
        args=redacted(item.args, item.redact),
        description=item.summary,
        agent=approval.agent,
        tier=item.tier,
        channel=approval.channel,
        opened_at=datetime.fromtimestamp(approval.created_at_ms / 1000, UTC),
        expires_at=datetime.fromtimestamp(end_of(approval, item) / 1000, UTC),
    )


class RemoteRunService(RunCalls):
    """The runs of agents in other processes: their calls, leases and answers.

    A reply covers only the run that the question names. The caller checks before that
    the process may act for that run's agent.

    Args:
        store: the store.
        agents: the service that ends calls.
        feed: the tenant's events.
        tenant: the tenant of the agents.
    """

    # The gateway gets no notice when a run in another process ends, so its data
    # expires. Open approvals keep their requester.
    _why = "aside"

    def __init__(
        self, store: Store, agents: AgentService, feed: EventFeed, *, tenant: str
    ) -> None:
        super().__init__(store, agents, tenant=tenant)
        self._feed = feed

    async def answers(
        self, asked: AnswersQuestion, may_be: MayBe
    ) -> tuple[Answered, ...]:
        """Return the answers to questions of a run; wait for the first one.

        Args:
            asked: which run and questions, and how long to wait.
            may_be: returns whether the caller may act for an agent. Calls of other
                agents are answered as if they had no record.

        Raises:
            NotAllowed: when the agent's name differs from the one in the record.
            StoreUnavailable: when the store does not answer.
        """
        if not asked.wait_s:
            return await self._answers(asked, may_be)

        def wants(event: Event) -> bool:
            return event.run_ref == asked.run

        clock = asyncio.get_running_loop().time
        ends = clock() + asked.wait_s
        async with self._feed.following(wants) as follower:
            found = await self._answers(asked, may_be)
            while (
                not found and not self._feed.is_closing and (left := ends - clock()) > 0
            ):
                await follower.wait(min(left, LOOK_S))
                found = await self._answers(asked, may_be)
            return found

    async def _answers(
        self, asked: AnswersQuestion, may_be: MayBe
    ) -> tuple[Answered, ...]:
        def concerns(approval: Approval) -> bool:
            # A missing call and a call of another agent get the same answer.
            is_ours = approval.tenant == self._tenant
            return is_ours and may_be(approval.run_ref.agent)

        try:
            found = await find_answers(
                self._store, asked.run, asked.questions, concerns
            )
        except GraphError as error:
            raise NotAllowed(str(error)) from error
        return tuple(
            Answered(**one.model_dump(), answer=answer.answer, times=answer.times)
            for one, answer in found.items()
        )

    async def lease(self, asked: LeaseQuestion) -> LeaseReply:
        """Take, extend, renumber or release a lease."""
        agent, thread = asked.run.agent, asked.run.thread
        keys = self._keys
        reply = await self._store.threads.leases.step(
            keys, keys.lease(agent, thread),
            asked.verb, asked.token, asked.above, reach=REACH
        )  # fmt: skip
        return reply.with_(name=reply.name.rpartition(":")[2])

    def held(self, ref: LeaseRef) -> Lease:
        """Return the lease that a request is made under, for its fenced writes.

        The lease is not checked here: each write compares its fence.
        """
        return Lease(
            self.lease_key(ref.run),
            ref.token,
            fence=ref.fence,
            ends_s=now_s() + _REQUEST_S,
            renumber=_cannot_renumber,
        )

    def lease_key(self, run: RunRef) -> str:
        """Return the key of the lease on a thread."""
        return self._keys.lease(run.agent, run.thread)


async def _cannot_renumber(_lease: Lease, _above: int) -> int:
    # Only the process with the checkpoint database requests another fence.
    raise LeaseLost
