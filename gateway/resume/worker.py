"""Take resume jobs, one a free slot, and do each under its thread's lease."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from gateway.agent.port import Gateway, connected
from gateway.errors import (
    StateUnknown,
    StoreUnavailable,
    ThreadUnavailable,
    TwokeyError,
)
from gateway.failures import log_failure
from gateway.resume.advancing import Advancer
from gateway.resume.announcing import Announcer, Place
from gateway.resume.classification import ThreadHalted, is_final
from gateway.resume.leases import under_lease
from gateway.resume.runner import Runner
from gateway.resume.runners import Runners
from gateway.service.agents import AgentService
from gateway.store.jobs import Delivery, JobKind, JobQueue
from gateway.store.keys import Keys
from gateway.store.store import Store

logger = logging.getLogger(__name__)

BUSY_MS = 100
"""How soon to look again at a thread that another process runs."""
UNKNOWN_STATE_MS = 5000
"""How soon to read a business state again that could not be read."""
UNSERVED_MS = 1000
"""How soon to offer a job again whose thread this process does not run."""
MAX_UNSERVED = 1000
"""How many threads that this process does not run are named in its log."""
BACK_OFF_MS, BACK_OFF_CAP_MS = 500, 60_000
BLOCK_MS = 500
"""How long one read waits for a job: no longer than a stop may take."""
GRACE_S = 25.0
"""How long running threads may take to rest when the worker is stopped."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


@dataclass(frozen=True)
class Rested:
    """A job was done with: ``error`` is set when its thread was given up."""

    agent: str
    thread: str
    error: BaseException | None = None


def nobody(rested: Rested) -> None:
    """Tell nobody."""


class Worker:
    """Everything a process does for the agents it runs.

    Args:
        store: where jobs, leases and items are kept.
        gateway: what the agents are connected to, from any event loop.
        agents: the same gateway's service in this event loop.
        runners: what this process runs; changes while the worker works.
        consumer: name of this process among the readers, unlike any other's.
        tenant: whose agents these are.
        slots: how many threads are run at the same time.
        at_rest: called after each job that was done with.
    """

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        agents: AgentService,
        runners: Runners,
        *,
        consumer: str,
        tenant: str = "default",
        slots: int = 8,
        at_rest: Callable[[Rested], None] = nobody,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._runners = runners
        self._tenant = tenant
        self._advancer = Advancer(store, agents)
        self._announcer = Announcer(store)
        self._slots = asyncio.Semaphore(slots)
        self._at_rest = at_rest
        self._running: set[asyncio.Task[None]] = set()
        self._unserved: set[tuple[str, str]] = set()
        self._consumer = consumer

    async def run(self, stop: asyncio.Event, *, grace_s: float = GRACE_S) -> None:
        """Work until ``stop`` is set, then let running threads rest.

        What does not rest within ``grace_s`` is stopped and its job handed back; a
        tool that was running then shows as in doubt, never as if it had not begun.
        """
        try:
            async with asyncio.TaskGroup() as readers:
                for keys in self._store.every_shard():
                    readers.create_task(self._read(keys, stop))
        finally:
            await self._drain(grace_s)

    async def _read(self, keys: Keys, stop: asyncio.Event) -> None:
        queue = self._store.queue(keys)
        is_prepared = False
        pause = FIRST_PAUSE_S
        while not stop.is_set():
            await self._slots.acquire()
            task: asyncio.Task[None] | None = None
            try:
                if not is_prepared:
                    await queue.prepare()
                    is_prepared = True
                delivery = await queue.take(self._consumer, block_ms=BLOCK_MS)
                pause = FIRST_PAUSE_S
                if delivery is not None:
                    task = asyncio.create_task(self._do(keys, queue, delivery))
                    self._running.add(task)
                    task.add_done_callback(self._free)
            except StoreUnavailable as error:
                logger.warning("jobs.unreadable shard=%s error=%s", keys.shard, error)
                is_prepared = False
            except Exception as error:  # noqa: BLE001 - the worker survives
                log_failure(logger, error, "jobs.unreadable shard=%s", keys.shard)
                is_prepared = False
            finally:
                if task is None:
                    self._slots.release()
            if not is_prepared:
                await _either(stop, pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    def _free(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()

    async def _drain(self, grace_s: float) -> None:
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=grace_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    async def _do(self, keys: Keys, queue: JobQueue, delivery: Delivery) -> None:
        """Do one job to one of its ends: done, later, again, dead."""
        job = delivery.job
        at = Place(keys, job.tenant, job.agent, job.thread)
        runner = self._runners.of(job.agent, job.thread)
        is_ours = job.tenant == self._tenant
        is_resume = job.kind is JobKind.RESUME
        try:
            if is_ours and is_resume and await self._is_of_no_use(at):
                await queue.done(delivery)
                return
            if runner is None or not is_ours:
                await self._leave(queue, delivery)
                return
            async with queue.holding(self._consumer, delivery):
                await self._attempt(at, runner, queue, delivery)
        except StoreUnavailable as error:
            # The delivery stays pending; whoever reads next takes it over.
            logger.warning("job.unacknowledged job=%s error=%s", delivery.id, error)
        except Exception as error:  # noqa: BLE001 - the worker survives
            log_failure(logger, error, "job.lost_for_now job=%s", delivery.id)

    async def _is_of_no_use(self, at: Place) -> bool:
        """Return True if no process has anything to do for a thread's job."""
        if self._runners.is_left(at.agent, at.thread):
            return True
        has_ended = self._runners.has_ended(at.agent, at.thread)
        return has_ended and not await self._advancer.unfinished(at)

    async def _attempt(
        self, at: Place, runner: Runner, queue: JobQueue, delivery: Delivery
    ) -> None:
        try:
            with connected(self._gateway, at.home):
                await under_lease(
                    self._store, at, lambda: self._bring(at, runner, delivery)
                )
        except asyncio.CancelledError:
            fresh = await self._as_far_as_it_got(at, runner, delivery)
            await queue.later(fresh, delay_ms=0)
            raise
        except ThreadUnavailable as error:
            logger.info("job.later job=%s reason=%s", delivery.id, error)
            fresh = await self._as_far_as_it_got(at, runner, delivery)
            await queue.later(fresh, delay_ms=_jittered(BUSY_MS))
        except StateUnknown as error:
            # Tried until the approval lapses: people have decided, and need not again.
            logger.warning("job.state_unknown job=%s reason=%s", delivery.id, error)
            fresh = await self._as_far_as_it_got(at, runner, delivery)
            await queue.later(fresh, delay_ms=_jittered(UNKNOWN_STATE_MS))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - the worker survives
            log_failure(
                logger,
                error,
                "job.failed job=%s agent=%s thread=%s attempt=%d",
                delivery.id,
                at.agent,
                at.thread,
                delivery.job.attempt,
            )
            fresh = await self._as_far_as_it_got(at, runner, delivery)
            await self._try_again(at, queue, fresh, error)
        else:
            await queue.done(delivery)
            self._at_rest(Rested(at.agent, at.thread))

    async def _bring(self, at: Place, runner: Runner, delivery: Delivery) -> None:
        job, key = delivery.job, delivery.id
        is_new = (
            job.kind is JobKind.START
            # Only a message that was not taken is queued again, under a new id; so
            # the delivery's id tells whether it was.
            and (await runner.probe(at.thread)).taken != key
        )
        if is_new:
            state = await self._advancer.begin(
                at, runner, lambda: runner.start(at.thread, job.input, key=key)
            )
        else:
            state = await self._advancer.forward(at, runner)
        if state.is_finished:
            self._runners.release(at.agent, at.thread)

    async def _as_far_as_it_got(
        self, at: Place, runner: Runner, delivery: Delivery
    ) -> Delivery:
        """Return the job that is left: a message that was taken is not given again."""
        if delivery.job.kind is not JobKind.START:
            return delivery
        if (await runner.probe(at.thread)).taken != delivery.id:
            return delivery
        rest = delivery.job.with_(kind=JobKind.RESUME, input="")
        return Delivery(delivery.id, rest)

    async def _try_again(
        self, at: Place, queue: JobQueue, delivery: Delivery, error: Exception
    ) -> None:
        delay_ms = min(BACK_OFF_MS * 2**delivery.job.attempt, BACK_OFF_CAP_MS)
        kind = type(error).__name__
        if isinstance(error, ThreadHalted) and error.is_told:
            await queue.done(delivery)
            self._at_rest(Rested(at.agent, at.thread, error))
            return
        if await queue.again(
            delivery,
            delay_ms=_jittered(delay_ms),
            error=kind,
            is_final=is_final(error),
        ):
            return
        logger.error("job.dead agent=%s thread=%s error=%s", at.agent, at.thread, kind)
        # An error that is not ours may quote arguments: only its name is told.
        reason = str(error) if isinstance(error, TwokeyError) else kind
        await self._announcer.failed(at, reason)
        self._at_rest(Rested(at.agent, at.thread, error))

    async def _leave(self, queue: JobQueue, delivery: Delivery) -> None:
        """Leave a job to a process that runs its thread; it is never acknowledged here.

        A program that started again serves a thread once it runs it again.
        """
        job = delivery.job
        place = (job.agent, job.thread)
        if place not in self._unserved and len(self._unserved) < MAX_UNSERVED:
            self._unserved.add(place)
            logger.warning(
                "thread.not_run_here agent=%s thread=%s", job.agent, job.thread
            )
        await queue.later(delivery, delay_ms=_jittered(UNSERVED_MS))


def _jittered(delay_ms: int) -> int:
    return int(delay_ms * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load only


async def _either(stop: asyncio.Event, pause_s: float) -> None:
    """Wait for a stop, no longer than ``pause_s``."""
    try:
        async with asyncio.timeout(pause_s):
            await stop.wait()
    except TimeoutError:
        return
