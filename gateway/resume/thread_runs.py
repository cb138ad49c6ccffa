"""Run threads for a program in the process that has the store.

The program takes the first step of each run. After a decision or for a retry, the
worker of any process with the runner takes the next steps; the program waits for it.

A wait may last for days, so it does not poll. This process's worker reports changes of
its threads. One reader of the event feed, shared by all waiters, reports changes by
other processes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from typing_extensions import override

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.errors import StoreUnavailable, ThreadUnavailable
from keyturn.gateway.failures import any_failure
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.diagnosis import diagnose, is_limit
from keyturn.gateway.resume.langgraph_local import LangGraphLocal
from keyturn.gateway.resume.program_runs import (
    Drive,
    GivenUp,
    ProgramRuns,
    ThreadChanges,
    input_key,
    next_change,
)
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.runner import (
    Answers,
    PendingInterrupt,
    Runners,
    ThreadChange,
    ThreadState,
)
from keyturn.gateway.resume.store_threads import StoreThreads, ThreadRef
from keyturn.gateway.resume.transient_retry import InputNotGiven, retry_transient
from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.runs.stalled import RunState
from keyturn.gateway.store.store import Store


class ThreadRuns(ProgramRuns):
    """Threads of a program in the process that has the store.

    Args:
        store: leases and events.
        gateway: the agents' gateway.
        runners: keeps the runner of a thread until the thread has ended.
        tenant: owner of these threads.
    """

    # Once a thread has its input, the workers try its step again.
    retried = (InputNotGiven, StoreUnavailable, ThreadUnavailable)

    def __init__(
        self,
        store: Store,
        gateway: AgentService,
        runners: Runners,
        *,
        tenant: str,
    ) -> None:
        threads = StoreThreads(store, gateway, tenant=tenant)
        super().__init__(gateway, threads, store.retries)
        self._store = store
        self._tenant = tenant
        self._runners = runners
        self._feed = EventFeed(store, tenant=tenant)
        self._stalled = Retries(store)

    @override
    @asynccontextmanager
    async def _changes(self, run: RunRef) -> AsyncGenerator[ThreadChanges]:
        """See `ProgramRuns._changes`; also of changes by other processes."""

        def hear(event: Event) -> bool:
            if event.run_ref == run:
                queue.put_nowait(ThreadChange(run.agent, run.thread))
            return False  # the feed keeps no event

        async with AsyncExitStack() as following, super()._changes(run) as queue:
            follow = self._feed.following
            await retry_transient(lambda: following.enter_async_context(follow(hear)))
            yield queue

    @override
    async def _parked(self, run: RunRef) -> str | None:
        found = await self._stalled.find_parked(self._at(run))
        return None if found is None else found.reason

    @override
    async def _answers(
        self, run: RunRef, asked: Sequence[PendingInterrupt], wait_s: float
    ) -> Answers:
        # Otherwise the job of each decision would be offered again for ever.
        self._runners.leave(run.agent, run.thread)
        async with self._changes(run) as changes:
            found = await self.threads.answers(run, asked)
            if wait_s and not found.ready and not found.unfit:
                await next_change(changes, within_s=wait_s)
                self._raise_if_closed(run)
                found = await self.threads.answers(run, asked)
            return found

    @override
    async def delete(self, run: RunRef, runner: LangGraphLocal) -> None:
        """See `ProgramRuns.delete`."""
        await super().delete(run, runner)
        self.notify(ThreadChange(run.agent, run.thread))

    @override
    async def _forget(self, run: RunRef) -> None:
        keys = self._at(run).keys
        await self._store.threads.end_run(keys, run.agent, run.thread)
        self._runners.release(run.agent, run.thread)

    @override
    async def close(self) -> None:
        """See `ProgramRuns.close`."""
        await super().close()
        await self._feed.close()

    def _at(self, run: RunRef) -> ThreadRef:
        return ThreadRef.of(self._store, self._tenant, run)

    @override
    async def _advance(self, drive: Drive) -> ThreadState | None:
        run = drive.run
        self._runners.keep(run.agent, run.thread, drive.runner)
        try:
            state = await super()._advance(drive)
        except ThreadUnavailable:
            raise
        except any_failure() as error:  # raised again, unless it can pass
            await self._failed(drive, error)
            return None
        await self._stalled.record_resumed(self._at(run), None, drive.runner)
        if state is not None and (state.is_finished or not state.exists):
            self._runners.release(run.agent, run.thread)
        return state

    async def _failed(self, drive: Drive, error: BaseException) -> None:
        """Hand a thread over to the workers for retries, or raise the error.

        Raises:
            InputNotGiven: the thread does not have its input yet.
        """
        can_pass, given = diagnose(error).can_pass, drive.given
        try:
            state = await drive.runner.probe(drive.run.thread)
        except Exception as unread:
            if can_pass and diagnose(unread).can_pass:
                raise InputNotGiven from error
            raise error from unread
        # Without its input a worker cannot continue the thread.
        if not state.exists or (given is not None and state.taken != input_key(given)):
            if can_pass:
                raise InputNotGiven from error
            raise error
        at = self._at(drive.run)
        left = Job.to_resume(at.tenant, at.agent, at.thread)
        kept = await self._stalled.failed(at, error, left=left, is_last=not can_pass)
        if kept is not None and kept.state is RunState.PARKED and is_limit(error):
            # The same error as when a worker reaches the limit after a decision.
            raise GivenUp(drive.run, kept.reason) from error
        if kept is None or kept.state is RunState.PARKED:
            raise error
