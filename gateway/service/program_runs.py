"""Serve the runs that programs bring forward themselves, in any process."""

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
from keyturn.gateway.store.leases import REACH
from keyturn.gateway.store.store import Store
from keyturn.gateway.store.threads import ThreadFacts, Why

logger = logging.getLogger(__name__)

LOOK_S = 15.0
"""After how long without an event the records are read all the same: what ends a wait
need not be announced, as when a store was restored."""

_LONGEST = 200
"""How many characters what names a person or a place in Slack may have: it is read, and
kept, with each call of the thread."""

_REQUEST_S = 3600.0
"""How long a lease counts within one request at most; the store knows its real end."""

_UNSTARTED = {ItemState.PENDING, ItemState.AUTHORIZED}

MayBe = Callable[[str], bool]
"""Returns whether who asks speaks for an agent."""


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
        """Keep who asked for a run and where; nobody known before is forgotten.

        Raises:
            NotAllowed: when a place in Slack is given by half, who asked has no id of
                a Slack user, or a name is too long.
            TooManySpeakers: when nobody could say later who asked.
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
            # What is overdue cannot be decided any more, even if no sweep has ended it
            # yet.
            if item.is_pending and not is_late(loaded.approval, item, loaded.now_ms)
        )

    async def withdraw(
        self,
        run: RunRef,
        item_ids: Collection[str] | None = None,
        *,
        resumes: bool = True,
    ) -> tuple[str, ...]:
        """End calls of a run that wait or were not started.

        The agent is told that they were withdrawn and did not run.

        Args:
            run: whose calls.
            item_ids: which; None means all that people decide or approved. An id of no
                such call of the run is left alone.
            resumes: bring the agent back by a job.

        Returns:
            The ids of those that were ended now.
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
            # After the calls have ended: a job before that could bring the agent back
            # too early. It may be queued twice, which does no harm.
            await self._store.queue(self._keys).put(job)
        return await self._ended_of(chosen)

    async def settle(
        self, run: RunRef, asked: Collection[str], *, is_finished: bool
    ) -> None:
        """Withdraw the calls that a resting thread does not ask about any more.

        Another middleware dropped them. While the thread rests on a question, an
        authorized item may belong to a tool whose inside asks that question, so only
        pending ones end.
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
        """Return those of these calls that were taken back, and so do not run.

        One that people decided and its agent began meanwhile is none of them.
        """
        # By their records: what does not wait may have been approved, and may run.
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

    A process is told nothing about runs that are not named in its question; whether it
    speaks for that run's agent is checked before.

    Args:
        store: where everything is kept.
        agents: the gateway's side of them.
        feed: tells what happens.
        tenant: whose agents these are.
    """

    # The gateway is not told when a run in another process ends: so nothing of it lives
    # for ever, and what is open keeps who asked.
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
            may_be: says for which agents who asks speaks. Of calls of others there is
                no record for them.

        Raises:
            NotAllowed: when the agent gives itself another name than in the record.
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
            # One answer for what does not exist and what is another's.
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
        """Take, keep, renumber or give back a lease."""
        agent, thread = asked.run.agent, asked.run.thread
        keys = self._keys
        reply = await self._store.threads.leases.step(
            keys, keys.lease(agent, thread),
            asked.verb, asked.token, asked.above, reach=REACH
        )  # fmt: skip
        return reply.with_(name=reply.name.rpartition(":")[2])

    def held(self, ref: LeaseRef) -> Lease:
        """Return the lease that a request is made under, for its fenced writes.

        Whether it still stands is not asked: each write compares its fence.
        """
        return Lease(
            self.lease_key(ref.run),
            ref.token,
            fence=ref.fence,
            ends_s=now_s() + _REQUEST_S,
            renumber=_cannot_renumber,
        )

    def lease_key(self, run: RunRef) -> str:
        """Return where the store keeps who holds the lease on a thread."""
        return self._keys.lease(run.agent, run.thread)


async def _cannot_renumber(_lease: Lease, _above: int) -> int:
    # Only its holder, which has the checkpoint database, asks for another fence.
    raise LeaseLost
