"""Run threads for a program in the process that has the store.

The program takes the first step of each run. After a decision or for a retry, the
worker of any process with the runner takes the next steps; the program waits for it.

A wait may last for days, so it does not poll. This process's worker reports changes of
its threads. One reader of the event feed, shared by all waiters, reports changes by
other processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from typing_extensions import override

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.errors import StoreUnavailable, ThreadUnavailable
from keyturn.gateway.failures import any_failure
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.diagnosis import ThreadHalted, diagnose, is_limit
from keyturn.gateway.resume.langgraph_local import LangGraphLocal
from keyturn.gateway.resume.program import (
    GRACE_S,
    Attempts,
    ProgramRuns,
    given_up,
    has_work,
    input_key,
    rests_for_good,
)
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.runner import (
    Answers,
    PendingInterrupt,
    Runners,
    ThreadState,
)
from keyturn.gateway.resume.store_threads import StoreThreads, ThreadRef
from keyturn.gateway.resume.transient_retry import (
    InputNotGiven,
    drain_tasks,
    retry_transient,
    wait_or_timeout,
)
from keyturn.gateway.resume.worker import ThreadChange
from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.runs.stalled import RunState
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

LOOK_S = 60.0
"""Time without a change after which a thread is read anyway: an event can be lost when
the store is restored.
"""
SOON_S = 1.0
"""Time after each change before another look at the thread: an event can precede its
effect, for instance when a thread is deleted.
"""

ThreadChanges = asyncio.Queue[ThreadChange]


async def next_change(
    changes: ThreadChanges, *, within_s: float = LOOK_S
) -> ThreadChange | None:
    """Wait until a thread may have changed; None after a wait without a change."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            return await changes.get()
    return None


class ThreadRuns(ProgramRuns):
    """Threads of a program in the process that has the store.

    Args:
        store: leases and events.
        gateway: the agents' gateway.
        runners: keeps the runner of a thread until the thread has ended.
        tenant: owner of these threads.
    """

    def __init__(
        self,
        store: Store,
        gateway: AgentService,
        runners: Runners,
        *,
        tenant: str,
    ) -> None:
        super().__init__(gateway, StoreThreads(store, gateway, tenant=tenant))
        self._store = store
        self._tenant = tenant
        self._runners = runners
        self._feed = EventFeed(store, tenant=tenant)
        self._waiting = defaultdict[tuple[str, str], set[ThreadChanges]](set)
        self._retries = Retries(store)
        self._steps = dict[asyncio.Task[ThreadState | None], RunRef]()
        self._is_closed = False

    def notify(self, change: ThreadChange) -> None:
        """Wake the waiters for a thread; an error ends their wait."""
        for queue in self._waiting.get((change.agent, change.thread), ()):
            queue.put_nowait(change)

    @asynccontextmanager
    async def _changes(self, run: RunRef) -> AsyncGenerator[ThreadChanges]:
        """Yield a queue that gets an entry after each change from now on.

        Read the thread after entering this, or a change in between is missed.
        """
        place, queue = (run.agent, run.thread), ThreadChanges()

        def hear(event: Event) -> bool:
            if (event.agent, event.thread) == place or event.nested_in == run:
                queue.put_nowait(ThreadChange(*place))
            return False  # the feed keeps no event

        async with AsyncExitStack() as following:
            self._waiting[place].add(queue)
            try:
                follow = self._feed.following
                await retry_transient(
                    lambda: following.enter_async_context(follow(hear))
                )
                yield queue
            finally:
                self._waiting[place].discard(queue)
                if not self._waiting[place]:
                    del self._waiting[place]

    @override
    async def run(
        self, run: RunRef, runner: LangGraphLocal, given: object
    ) -> dict[str, Any]:
        """See `ProgramRuns.run`."""
        # A step that begins now would outlive the checkpoints.
        if self._closing.is_set():
            raise _closed(run)
        # First, so that a wait that ends at once has begun the step as well.
        step = asyncio.create_task(self._step(run, runner, given))
        self._steps[step] = run
        step.add_done_callback(self._ended)
        async with self._changes(run) as changes:
            try:
                # A cancelled wait must not stop the step in the middle.
                await asyncio.shield(step)
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                # The step was cancelled, not the caller.
                if step.cancelled() and caller and not caller.cancelling():
                    raise _closed(run) from None
                raise
            return await self._rest(run, runner, changes)

    @override
    async def wait(self, run: RunRef, runner: LangGraphLocal) -> dict[str, Any]:
        """See `ProgramRuns.wait`."""
        async with self._changes(run) as changes:
            return await self._rest(run, runner, changes)

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
        self._closing.set()
        await drain_tasks(self._steps, GRACE_S)
        self._is_closed = True
        for place in [*self._waiting]:
            self.notify(ThreadChange(*place))
        await self._feed.close()

    def _at(self, run: RunRef) -> ThreadRef:
        return ThreadRef.of(self._store, self._tenant, run)

    def _raise_if_closed(self, run: RunRef) -> None:
        """Raise if this object is closed, because the thread can no longer be read."""
        if self._is_closed:
            raise _closed(run) from None

    async def _rest(
        self, run: RunRef, runner: LangGraphLocal, changes: ThreadChanges
    ) -> dict[str, Any]:
        # The first look does not wait: the thread may rest already.
        within_s: float = 0.0
        while True:
            change = await next_change(changes, within_s=within_s) if within_s else None
            _raise_if_given_up(change)
            self._raise_if_closed(run)
            try:
                state = await runner.probe(run.thread)
                # A step in this process may be about to write the thread.
                begins = any(
                    of == run for step, of in self._steps.items() if not step.done()
                )
                if rests_for_good(state) and (state.exists or not begins):
                    return await self._values(run, runner, state)
                # Another process may have parked the run.
                parked = await self._retries.find_parked(self._at(run))
            except ThreadUnavailable:
                raise
            except Exception as error:
                self._raise_if_closed(run)
                if not diagnose(error).can_pass:
                    raise
                logger.warning(
                    "thread.unread agent=%s thread=%s", run.agent, run.thread
                )
                change = ThreadChange(run.agent, run.thread)
            else:
                if parked is not None:
                    raise given_up(run, parked.reason)
            within_s = LOOK_S if change is None else SOON_S

    async def _step(
        self, run: RunRef, runner: LangGraphLocal, given: object
    ) -> ThreadState | None:
        """Take a step of a thread; begin again after an outage.

        Once the thread has its input, the workers continue it instead.
        """
        # Same limit as for a run that failed after it got its input.
        attempts = Attempts(run, self._store.retries)
        while True:
            try:
                return await self._under_lease(
                    run, lambda: self._advance(run, runner, given)
                )
            except (InputNotGiven, StoreUnavailable, ThreadUnavailable) as error:
                # `InputNotGiven` only carries its cause up to here.
                cause = (isinstance(error, InputNotGiven) and error.__cause__) or error
                pause_s = None
                if not self._closing.is_set() and await has_work(run, runner, given):
                    pause_s = attempts.pause_s(cause)
                if pause_s is None:
                    raise cause from None
            await wait_or_timeout(self._closing, pause_s)

    async def _advance(
        self, run: RunRef, runner: LangGraphLocal, given: object
    ) -> ThreadState | None:
        self._runners.keep(run.agent, run.thread, runner)
        try:
            state = await self._begin_or_go_on(run, runner, given)
        except ThreadUnavailable:
            raise
        except any_failure() as error:  # raised again, unless it can pass
            await self._failed(run, runner, given, error)
            return None
        await self._retries.record_resumed(self._at(run), None, runner)
        if state.is_finished or not state.exists:
            self._runners.release(run.agent, run.thread)
        return state

    async def _failed(
        self, run: RunRef, runner: LangGraphLocal, given: object, error: BaseException
    ) -> None:
        """Hand a thread over to the workers for retries, or raise the error.

        Raises:
            InputNotGiven: the thread does not have its input yet.
        """
        can_pass = diagnose(error).can_pass
        try:
            state = await runner.probe(run.thread)
        except Exception as unread:
            if can_pass and diagnose(unread).can_pass:
                raise InputNotGiven from error
            raise error from unread
        # Without its input a worker cannot continue the thread.
        if not state.exists or (given is not None and state.taken != input_key(given)):
            if can_pass:
                raise InputNotGiven from error
            raise error
        at = self._at(run)
        left = Job.to_resume(at.tenant, at.agent, at.thread)
        kept = await self._retries.failed(at, error, left=left, is_last=not can_pass)
        if kept is not None and kept.state is RunState.PARKED and is_limit(error):
            # The same error as when a worker reaches the limit after a decision.
            raise given_up(run, kept.reason) from error
        if kept is None or kept.state is RunState.PARKED:
            raise error

    def _ended(self, step: asyncio.Task[ThreadState | None]) -> None:
        run = self._steps.pop(step)
        error = self._error_of(run, step)
        if error is not None and not isinstance(error, ThreadUnavailable):
            self.notify(ThreadChange(run.agent, run.thread, error))


def _closed(run: RunRef) -> ThreadUnavailable:
    return ThreadUnavailable(
        f"Keyturn was closed during the wait for the thread {run.thread!r} of "
        f"{run.agent!r}. The thread keeps its state; run it again to go on."
    )


def _raise_if_given_up(change: ThreadChange | None) -> None:
    if change is None or change.error is None:
        return
    if isinstance(change.error, ThreadHalted):
        raise change.error
    reason = diagnose(change.error).reason
    run = RunRef(agent=change.agent, thread=change.thread)
    raise given_up(run, reason) from change.error
