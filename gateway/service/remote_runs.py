"""Serve runs that a program in another process brings forward itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from twokey.gateway.approvals.events import Event
from twokey.gateway.approvals.record import Approval, Origin
from twokey.gateway.errors import GraphError, NotAllowed
from twokey.gateway.protocol.records import NO_SLACK_ID, RunRef
from twokey.gateway.protocol.remote_runs import (
    Answered,
    AnswersQuestion,
    OpenQuestion,
    PendingCall,
    RunFacts,
    Withdrawal,
)
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.answering import Asked, find_answer
from twokey.gateway.service.event_feed import EventFeed
from twokey.gateway.service.pending_calls import PendingCalls
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.store import Store
from twokey.gateway.store.threads import ThreadFacts

LOOK_S = 15.0
"""After how long without an event the records are read all the same: what ends a wait
need not be announced, as when a store was restored."""

_LONGEST = 200
"""How many characters what names a person or a place in Slack may have: it is read, and
kept, with each call of the thread."""

MayBe = Callable[[str], bool]
"""Returns whether who asks speaks for an agent."""


class RemoteRunService(TenantService):
    """The runs of agents in other processes.

    Args:
        store: where everything is kept.
        agents: the gateway's side of them.
        feed: tells what happens.
        tenant: whose agents these are.
    """

    def __init__(
        self, store: Store, agents: AgentService, feed: EventFeed, *, tenant: str
    ) -> None:
        super().__init__(store, tenant=tenant)
        self._agents = agents
        self._feed = feed
        self._pending = PendingCalls(store, agents, tenant=tenant)

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
        place = (self._keys_of(run.agent), self._tenant, run.agent, run.thread)
        # The gateway is not told when a run in another process ends: so nothing of it
        # lives for ever, and what is open keeps who asked.
        await self._store.threads.change(*place, asked, why="aside")

    async def pending(self, run: RunRef) -> tuple[PendingCall, ...]:
        """Return the calls of a run that wait for people, oldest first."""
        return await self._pending.of(run)

    async def withdraw(self, what: Withdrawal) -> tuple[str, ...]:
        """End calls of a run that wait; return the ids of those that were ended."""
        chosen = await self._pending.end(what.run, what.item_ids)
        return await self._pending.ended_of(chosen) if chosen else ()

    async def supersede_run(self, run: RunRef) -> None:
        """End everything that waits in a run."""
        await self._agents.supersede_run(run)

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
            return await self._answers(asked.run, asked.questions, may_be)

        def wants(event: Event) -> bool:
            return event.run_ref == asked.run

        clock = asyncio.get_running_loop().time
        ends = clock() + asked.wait_s
        async with self._feed.following(wants) as follower:
            found = await self._answers(asked.run, asked.questions, may_be)
            while (
                not found and not self._feed.is_closing and (left := ends - clock()) > 0
            ):
                await follower.wait(min(left, LOOK_S))
                found = await self._answers(asked.run, asked.questions, may_be)
            return found

    async def _answers(
        self, run: RunRef, questions: Sequence[OpenQuestion], may_be: MayBe
    ) -> tuple[Answered, ...]:
        def concerns(approval: Approval) -> bool:
            # One answer for what does not exist and what is another's.
            is_ours = approval.tenant == self._tenant
            return is_ours and may_be(approval.run_ref.agent)

        cards: dict[str, Approval | None] = {}
        answered: list[Answered] = []
        for one in questions:
            asked = Asked(one.kind, one.item_id, one.action_hash)
            try:
                found = await find_answer(self._store, run, asked, cards, concerns)
            except GraphError as error:
                raise NotAllowed(str(error)) from error
            if found is not None:
                named = one.model_dump()
                answered.append(
                    Answered(**named, answer=found.answer, times=found.times)
                )
        return tuple(answered)
