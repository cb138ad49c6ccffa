"""Compare the store with the checkpoints, and recover what one side lost.

Theory of operation. A call waits in two places: the store has its record, and the
checkpoints have the thread that asks about it. Either can be lost, or restored from an
older copy. Both are walked at start and hourly:

1. A thread that asks about a record which the store does not have is queued; the
   answer says that the record is lost, and authorizes nothing.
2. A record whose thread has finished, asks about something else or could go on is
   queued; the process that runs the thread ends or answers what it finds.
3. A record whose thread is gone is ended.

All of it is done under the thread's lease, from what both sides say then. So a look is
harmless at any time, on any replica, and twice.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import Interrupt

from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.errors import GraphError, NewerRecord, ThreadUnavailable
from twokey.gateway.failures import log_failure
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.resume.answers import answers_for
from twokey.gateway.resume.langgraph_local import AGENT_KEY
from twokey.gateway.resume.leases import under_lease
from twokey.gateway.resume.questions import asked_items
from twokey.gateway.resume.run_events import ThreadRef
from twokey.gateway.resume.runner import PendingInterrupt, ThreadState
from twokey.gateway.resume.runners import Runners
from twokey.gateway.resume.thread_states import pending_of
from twokey.gateway.resume.waiting_threads import INTERRUPT, CannotList, waiting_threads
from twokey.gateway.service.recovering import RecoveryService
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

RECORD_LOST = "The store has no record of a call that the thread asks about."
THREAD_GONE = "The checkpoints do not have the thread of a call that waits."
THREAD_ENDED = "The thread has ended, and a call of it still waits."
DROPPED = "A call waits for people, and the thread asks nothing about it."
DECIDED = "A call is decided, and its thread did not go on."


@dataclass(frozen=True)
class Mismatch:
    """A thread whose records and checkpoints differ: in what, for which calls."""

    agent: str
    thread: str
    problem: str
    items: tuple[str, ...]

    @property
    def is_gone(self) -> bool:
        """Return whether the checkpoints do not have the thread."""
        return self.problem == THREAD_GONE


@dataclass(frozen=True)
class RecoveryReport:
    """What one comparison found.

    Attributes:
        mismatches: threads to advance.
        unserved: how many waiting threads no agent of this process is known to run.
        is_whole: the checkpointer said which threads wait.
    """

    mismatches: tuple[Mismatch, ...]
    unserved: int = 0
    is_whole: bool = True

    @property
    def gone(self) -> tuple[Mismatch, ...]:
        """Return those whose thread the checkpoints do not have."""
        return tuple(one for one in self.mismatches if one.is_gone)


class Recovery:
    """Compare both sides for the agents of one process.

    Args:
        store: where records and jobs are.
        runners: what this process runs, and its checkpoints.
        tenant: whose agents these are.
    """

    def __init__(
        self,
        store: Store,
        runners: Runners,
        *,
        tenant: str = "default",
    ) -> None:
        self._store = store
        self._runners = runners
        self._tenant = tenant
        self._records = RecoveryService(store, tenant=tenant)

    async def recover(self, *, is_only_process: bool) -> RecoveryReport:
        """End what waits for threads that are gone, and queue all others.

        Args:
            is_only_process: no gateway with other checkpoints uses this store. One that
                did might have the threads that ours do not.
        """
        found = await self.compare()
        for mismatch in found.mismatches:
            logger.info(
                "recovery.found agent=%s thread=%s problem=%s items=%s",
                mismatch.agent,
                mismatch.thread,
                mismatch.problem,
                ",".join(mismatch.items),
            )
            if not mismatch.is_gone:
                await self._queue(mismatch)
            elif is_only_process:
                await self._end(mismatch)
        return found

    async def _queue(self, mismatch: Mismatch) -> None:
        keys = self._store.keys_of_agent(self._tenant, mismatch.agent)
        run = keys.stalled_run(self._tenant, mismatch.agent, mismatch.thread)
        try:
            has_failed = await self._store.stalled.find(keys, run) is not None
        except NewerRecord:
            # The process that can read the record decides about its run.
            has_failed = True
        if has_failed:
            return  # `twokey.gateway.resume.retries` decides about it
        job = Job.to_resume(self._tenant, mismatch.agent, mismatch.thread)
        await self._store.queue(keys).put(job)

    async def _end(self, mismatch: Mismatch) -> None:
        """End what waits for a thread, if it is still not there under its lease."""
        runner = self._runners.of(mismatch.agent, mismatch.thread)
        keys = self._store.keys_of_agent(self._tenant, mismatch.agent)
        at = ThreadRef(keys, self._tenant, mismatch.agent, mismatch.thread)

        async def work() -> None:
            # Read again, now under the lease: the thread may have been started
            # meanwhile.
            if runner is not None and not (await runner.probe(at.thread)).exists:
                await self._records.end_thread(at.run_ref)

        try:
            await under_lease(self._store, at, work)
        except ThreadUnavailable:
            return  # somebody runs it, so it is there

    async def compare(self) -> RecoveryReport:
        """Return what does not match, and change nothing."""
        from_store = [mismatch async for mismatch in self._from_store()]
        known = {(mismatch.agent, mismatch.thread) for mismatch in from_store}
        mismatches, unserved, is_whole = from_store, 0, self._runners.saver is not None
        try:
            async for agent, thread, pending in self._questions():
                if not agent:
                    unserved += 1
                elif (agent, thread) not in known:
                    mismatch = await self._unanswered(agent, thread, pending)
                    mismatches += [] if mismatch is None else [mismatch]
        except CannotList as error:
            logger.warning("recovery.cannot_list saver=%s", error)
            is_whole = False
        return RecoveryReport(tuple(mismatches), unserved, is_whole)

    async def _from_store(self) -> AsyncGenerator[Mismatch]:
        runs: dict[RunRef, list[Approval]] = {}
        async for approval in self._records.unfinished():
            runs.setdefault(approval.run_ref, []).append(approval)
        for run_ref, approvals in runs.items():
            runner = self._runners.of(run_ref.agent, run_ref.thread)
            if runner is None:
                continue
            try:
                state = await runner.probe(run_ref.thread)
                problem = await self._problem(run_ref, state, approvals)
            except Exception as error:  # noqa: BLE001 - one keeps no other from it
                log_failure(logger, error, "recovery.unread thread=%s", run_ref.thread)
                continue
            if problem:
                items = tuple(item.id for item in _waiting_items(approvals))
                yield Mismatch(run_ref.agent, run_ref.thread, problem, items)

    async def _problem(
        self, run_ref: RunRef, state: ThreadState, approvals: Iterable[Approval]
    ) -> str:
        """Return what is wrong with a run; "" when it waits as it should."""
        if not state.exists:
            return THREAD_GONE
        if state.is_finished:
            return THREAD_ENDED
        if state.is_cut_off:
            return ""  # it runs now, or is found by `twokey.gateway.resume.orphans`
        asked = asked_items(state.pending)
        dropped = [
            item
            for item in _waiting_items(approvals)
            # What waits inside a tool may not ask while another agent there does.
            if item.is_pending and not item.ctx.ns and item.id not in asked
        ]
        if dropped:
            return DROPPED
        found = await answers_for(
            self._store, run_ref.agent, run_ref.thread, state.pending
        )
        return DECIDED if found.ready else ""

    async def _questions(
        self,
    ) -> AsyncGenerator[tuple[str, str, list[PendingInterrupt]]]:
        """Yield agent, thread and open questions of each waiting thread.

        The agent is "" when nobody here runs it.
        """
        saver = self._runners.saver
        if saver is None:
            return
        async for thread in waiting_threads(saver):
            place: RunnableConfig = {
                "configurable": {"thread_id": thread, "checkpoint_ns": ""}
            }
            found = await saver.aget_tuple(place)
            pending = [] if found is None else _open_questions(found)
            if found is not None and asked_items(pending):
                yield self._agent_of(found), thread, pending

    def _agent_of(self, found: CheckpointTuple) -> str:
        """Return the agent whose thread this is; "" when this process runs none."""
        metadata = cast("Mapping[str, object]", found.metadata)
        agent, served = str(metadata.get(AGENT_KEY, "")), self._runners.agents
        if not agent and len(served) == 1:
            [agent] = served  # written before the name was kept
        # Checkpoints are not believed: the name counts only for an agent that runs
        # here.
        return agent if agent in served else ""

    async def _unanswered(
        self, agent: str, thread: str, pending: Sequence[PendingInterrupt]
    ) -> Mismatch | None:
        try:
            found = await answers_for(self._store, agent, thread, pending)
        except NewerRecord as error:
            # No failure: a process of the version that wrote it goes on with it.
            logger.warning("record.newer thread=%s why=%s", thread, error)
            return None
        except GraphError as error:
            log_failure(logger, error, "recovery.unread thread=%s", thread)
            return None
        if not found.ready:
            return None
        problem = RECORD_LOST if found.lost else DECIDED
        return Mismatch(agent, thread, problem, tuple(sorted(asked_items(pending))))


def _open_questions(found: CheckpointTuple) -> list[PendingInterrupt]:
    return [
        pending_of(one)  # pyright: ignore[reportUnknownArgumentType] - its type parameter
        for _, channel, value in found.pending_writes or ()
        if channel == INTERRUPT and isinstance(value, list | tuple)
        for one in cast("Sequence[object]", value)
        if isinstance(one, Interrupt)
    ]


def _waiting_items(approvals: Iterable[Approval]) -> list[Item]:
    waiting = {ItemState.PENDING, ItemState.AUTHORIZED}
    return [item for one in approvals for item in one.items if item.state in waiting]
