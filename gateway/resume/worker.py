"""Worker for start and resume jobs: one job per slot, each under a thread lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from keyturn.gateway.background import GRACE_S
from keyturn.gateway.errors import StoreUnavailable, ThreadUnavailable, ThreadUnknown
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.http_api import connected
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.advancer import Advancer
from keyturn.gateway.resume.langgraph_local import Runner, Runners
from keyturn.gateway.resume.retries import Retries, jittered
from keyturn.gateway.resume.store_threads import StoreThreads
from keyturn.gateway.resume.threads import ThreadChange
from keyturn.gateway.resume.transient_retry import drain_tasks, wait_or_timeout
from keyturn.gateway.resume.unknown_questions import UnknownQuestions
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.runs.jobs import Delivery, Job, JobKind, RunState, input_of
from keyturn.gateway.store.runs.leases import while_held
from keyturn.gateway.store.scripts.fences import current
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

BUSY_MS = 100
"""Delay before the next attempt at a thread that another process runs."""
BLOCK_MS = 500
"""Duration of one blocking read for a job; a stop waits for it."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


def ignore(change: ThreadChange) -> None:
    """Do nothing about a change."""


class Worker:
    """The worker of one process, for the agents that it runs.

    Args:
        store: jobs, leases and items.
        gateway: the agents' gateway, usable from any event loop.
        runners: the runners of this process; may change while the worker works.
        retries: retries, parks or ends failed runs.
        policy: returns the policy in force now.
        tenant: owner of these agents.
        slots: number of threads that run at the same time.
        on_change: called after each finished job.
    """

    def __init__(
        self,
        store: Store,
        gateway: AgentService,
        runners: Runners,
        retries: Retries,
        policy: Callable[[], Policy],
        *,
        tenant: str = "default",
        slots: int = 8,
        on_change: Callable[[ThreadChange], None] = ignore,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._runners = runners
        self._tenant = tenant
        self._threads = StoreThreads(store, gateway, tenant=tenant)
        self._advancer = Advancer(self._threads)
        self._unknown = UnknownQuestions(
            store, policy, gateway, self._advancer, tenant=tenant
        )
        self._retries = retries
        self._slots = asyncio.Semaphore(slots)
        self._on_change = on_change
        self._running: set[asyncio.Task[None]] = set()
        self._keys = store.keys_of_tenant(tenant)
        self._queue = store.queue(self._keys)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set, then wait for running threads to stop.

        After `GRACE_S` the rest is cancelled and its jobs are put back. A tool that
        was running is then in doubt, never recorded as not begun.
        """
        try:
            await self._read(stop)
        finally:
            await drain_tasks(self._running, GRACE_S)

    async def _read(self, stop: asyncio.Event) -> None:
        is_prepared = has_retried = False
        pause = FIRST_PAUSE_S
        while not stop.is_set():
            # Acquire a slot before taking a job: a job that waits here would age until
            # another process takes it over.
            await self._slots.acquire()
            task: asyncio.Task[None] | None = None
            try:
                if not is_prepared:
                    await self._queue.prepare()
                    is_prepared = True
                if not has_retried:
                    await self._retries.retry_now(self._runners.serves)
                    has_retried = True
                delivery = await self._queue.take(block_ms=BLOCK_MS)
                pause = FIRST_PAUSE_S
                if delivery is not None:
                    task = asyncio.create_task(self._do(delivery))
                    self._running.add(task)
                    task.add_done_callback(self._free)
                    # Give the job a chance to send its first request before the next
                    # read.
                    await asyncio.sleep(0)
            except StoreUnavailable as error:
                logger.warning(
                    "jobs.read_failed tenant=%s error=%s", self._tenant, error
                )
                # A lost connection may mean an empty store, without the consumer group.
                is_prepared = False
            except any_failure() as error:  # the worker survives
                log_failure(logger, error, "jobs.read_failed tenant=%s", self._tenant)
                is_prepared = False
            finally:
                if task is None:
                    self._slots.release()
            if not is_prepared:
                await wait_or_timeout(stop, pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    def _free(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()

    async def _do(self, delivery: Delivery) -> None:
        """Carry out one job: acknowledge it, put it back or park its run."""
        job = delivery.job
        run = RunRef(agent=job.agent, thread=job.thread)
        runner = self._runners.of(job.agent, job.thread)
        # A job of another tenant was not written by this gateway.
        is_ours = job.tenant == self._tenant
        is_resume = job.kind is JobKind.RESUME
        try:
            if is_ours and is_resume and await self._is_of_no_use(run):
                await self._retries.record_resumed(run, delivery)
                return
            if runner is None or not is_ours:
                await self._leave(run, delivery)
                return
            await self._attempt(run, runner, delivery)
        except StoreUnavailable as error:
            # The delivery stays pending; the next reader takes it over.
            logger.warning("job.unacknowledged job=%s error=%s", delivery.id, error)
        except any_failure() as error:  # the worker survives
            log_failure(logger, error, "job.failed job=%s", delivery.id)

    async def _is_of_no_use(self, run: RunRef) -> bool:
        """Return True if a thread's job has nothing left to do in any process."""
        has_ended = self._runners.has_ended(run.agent, run.thread)
        if not has_ended:
            return has_ended is False  # the program resumes it itself
        if await self._threads.unfinished(run):
            return False
        # Another process may run it by now: a rejected call is not unfinished.
        place = (self._keys, run.agent, run.thread)
        return not await self._store.threads.is_run_open(*place)

    async def _attempt(self, run: RunRef, runner: Runner, delivery: Delivery) -> None:
        """Try a job; put it back if its thread cannot run now."""
        try:
            with connected(self._gateway, run):
                once = partial(self._once, run, runner, delivery)
                await while_held(self._threads.lease(run), once)
        except asyncio.CancelledError:
            # The grace period is over: put the rest of the job back now instead of at
            # the end of the delivery's lease.
            fresh = await self._as_far_as_it_got(run, runner, delivery)
            await self._queue.later(fresh, delay_ms=0)
            raise
        except ThreadUnknown as error:
            await self._leave(run, delivery, why=str(error))
        except ThreadUnavailable:
            # Not logged: another process's long run refuses the lease many times.
            fresh = await self._as_far_as_it_got(run, runner, delivery)
            await self._queue.later(fresh, delay_ms=jittered(BUSY_MS))

    async def _once(self, run: RunRef, runner: Runner, delivery: Delivery) -> None:
        """Try a job, and record its result under the thread's lease."""
        if lease := current():
            # Otherwise another process takes the job over during a long run.
            beat = partial(self._queue.renew, delivery)
            lease.beats.append(beat)
        try:
            await self._advance(run, runner, delivery)
        except ThreadUnavailable as error:
            logger.info("job.later job=%s reason=%s", delivery.id, error)
            raise
        except any_failure() as error:  # the worker survives
            await self._failed(run, runner, delivery, error)
            return
        await self._retries.record_resumed(run, delivery, runner)
        self._on_change(ThreadChange(run.agent, run.thread))

    async def _failed(
        self, run: RunRef, runner: Runner, delivery: Delivery, error: BaseException
    ) -> None:
        left = await self._left(run, runner, delivery)
        kept = await self._retries.failed(run, error, left=left, delivery=delivery)
        if kept is None or kept.state is RunState.PARKED:
            self._on_change(ThreadChange(run.agent, run.thread, error))

    async def _advance(self, run: RunRef, runner: Runner, delivery: Delivery) -> None:
        job, key, sealing = delivery.job, _key(delivery), self._store.sealing
        is_start = job.kind is JobKind.START
        # Jobs are delivered at least once; each message is given once.
        is_new = is_start and not await runner.has_taken(run.thread, key)
        if is_new:
            state = await self._advancer.begin(
                run,
                runner,
                lambda: runner.start(run.thread, input_of(sealing, job), key=key),
                key=key,
            )
        elif is_start:
            state = await self._advancer.forward(run, runner)
        else:
            # The run may have been dropped while this job was queued; only a new
            # message starts it again.
            is_dropped, is_open = await self._store.threads.state_of_run(
                self._keys, run.agent, run.thread
            )
            if is_dropped:
                return
            state = await self._advancer.forward(run, runner, is_open=is_open)
        if self._runners.is_of_a_program(run.agent, run.thread):
            await self._unknown.check_answerable(run, state)
        else:
            await self._unknown.announce_or_end(run, state)
        if state.is_finished:
            self._runners.release(run.agent, run.thread)

    async def _left(
        self, run: RunRef, runner: Runner, delivery: Delivery
    ) -> Job | None:
        """Return the rest of a failed job; None if it is unknown.

        A message without an id is identified only by its delivery, which must not be
        replaced.
        """
        try:
            return (await self._as_far_as_it_got(run, runner, delivery)).job
        except any_failure() as error:  # the checkpoints cannot be read
            log_failure(logger, error, "thread.unread job=%s", delivery.id)
            return delivery.job if delivery.job.id else None

    async def _as_far_as_it_got(
        self, run: RunRef, runner: Runner, delivery: Delivery
    ) -> Delivery:
        """Return the rest of a job: a message that was taken is not given again."""
        if delivery.job.kind is not JobKind.START:
            return delivery
        if not await runner.has_taken(run.thread, _key(delivery)):
            return delivery
        rest = delivery.job.with_(kind=JobKind.RESUME, input="", id="", seal="")
        return Delivery(delivery.id, rest)

    async def _leave(self, run: RunRef, delivery: Delivery, why: str = "") -> None:
        """Leave a job to a process that runs its thread; never acknowledge it here.

        A restarted program serves a thread once it runs it again. A gateway with other
        checkpoints may have threads that are missing here.
        """
        # Offered again and again, less and less often; the log drops repeated lines.
        logger.warning("thread.not_run_here agent=%s thread=%s", run.agent, run.thread)
        await self._retries.requeue_unserved(run, delivery, why)


def _key(delivery: Delivery) -> str:
    """Return the key that a thread saves with a message.

    It stays the same when the job is put back and delivered again.
    """
    return delivery.job.id or delivery.id
