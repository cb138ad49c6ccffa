"""Find orphaned threads: they could continue, but no job will resume them.

Every event names its thread, so this is one more reader of the outbox for each agent:
it takes each event of the agent, leaves it unacknowledged, and gets it back once it has
rested for a while. Then the thread is looked at, and queued when it could go on. One
that has a job already is looked at later: after an outage thousands may wait for their
turn, and reading each from its checkpoints would keep the gateway from the work itself.
Nothing is kept in memory, any process that runs the agent may do it, and a thread
nobody touches costs nothing.

Each agent has its own reader, because processes may run different agents: one that
acknowledged the events of an agent which it does not run would hide the orphans of that
agent from the process that runs it. The same holds for threads of one agent that
different programs run, so events of a thread that runs elsewhere are left to them.

A reader that nobody reads as any more is dropped after a while, or it would keep the
outbox from being trimmed. So a new reader looks once at every open approval.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from datetime import timedelta

from twokey.gateway.approvals.events import TROUBLED_RUN, Event
from twokey.gateway.errors import NewerRecord, StoreUnavailable
from twokey.gateway.failures import log_failure
from twokey.gateway.resume.answers import answers_for
from twokey.gateway.resume.runner import Runner
from twokey.gateway.resume.runners import Runners
from twokey.gateway.store.jobs import Job, resume_text
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.outbox import Outbox
from twokey.gateway.store.readers import drop_idle_readers
from twokey.gateway.store.sorted_pages import pages_by_score
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

READERS = "orphans"
"""How the names of these readers begin."""
REST_MS = 20_000
"""How long after an event its thread is looked at: longer than a lease lives."""
LEFT_MS = int(timedelta(hours=1).total_seconds() * 1000)
"""How long events are left to the program that runs their thread: one that starts
again runs its threads soon, or not at all."""
GONE_MS = int(timedelta(days=7).total_seconds() * 1000)
"""How long nobody reads as a reader that is dropped: a gateway that is away for longer
finds only what waits for people, and no thread that was cut off before."""
_BATCH = 500
_ROUNDS = 20
_NO_WAIT_MS = 1
_MOST_JOBS = 10_000
"""Beyond this many jobs nobody looks for threads that have none."""


class OrphanFinder:
    """Look after the threads of the agents that this process runs.

    Args:
        store: where events, items and jobs are kept.
        runners: what this process runs.
        consumer: name of this process among the readers.
        tenant: whose agents these are.
        rest_ms: how long a thread may be left alone after an event.
        gone_ms: after how long a reader that nobody reads as is dropped.
    """

    def __init__(
        self,
        store: Store,
        runners: Runners,
        *,
        consumer: str,
        tenant: str = "default",
        rest_ms: int = REST_MS,
        gone_ms: int = GONE_MS,
    ) -> None:
        self._store = store
        self._runners = runners
        self._consumer = consumer
        self._tenant = tenant
        self._rest_ms = rest_ms
        self._gone_ms = gone_ms
        self._begun: set[str] = set()
        self._queued: set[Job] = set()

    async def look(self) -> int:
        """Queue every orphan whose time has come; return how many were found."""
        # Within one look a thread is queued once, however many events it has.
        self._queued.clear()
        agents = sorted(self._runners.names())
        found = await self._begin([one for one in agents if one not in self._begun])
        for agent in agents:
            try:
                found += await self._look_for(agent, self._reader(agent))
            except StoreUnavailable:
                # The reader may have been dropped; then everything is looked at again.
                self._begun.discard(agent)
                raise
        for keys in self._store.parts_of(self._tenant):
            dropped = await drop_idle_readers(
                self._store.conn, keys, prefix=READERS, idle_ms=self._gone_ms
            )
            for reader in dropped:
                logger.info("orphans.reader_dropped reader=%s", reader)
        return found

    async def _begin(self, agents: Collection[str]) -> int:
        """Begin to read for agents, and look at all of theirs that is open."""
        if not agents:
            return 0
        for agent in agents:
            # Before the approvals are read: an event between a look and a later start
            # of the reader would be seen by neither.
            await self._reader(agent).prepare()
        found = 0
        seen = set[Job]()
        for keys in {one.shard: one for one in map(self._keys_of, agents)}.values():
            jobs = await self._store.queue(keys).texts(_MOST_JOBS)
            if jobs is None:
                return found  # nothing is begun: the next look tries again
            found += await self._queue_open(keys, agents, jobs, seen)
        self._begun.update(agents)
        return found

    async def _queue_open(
        self,
        keys: Keys,
        agents: Collection[str],
        jobs: Collection[bytes],
        seen: set[Job],
    ) -> int:
        """Queue orphans among the open approvals of a shard, each thread once."""
        approvals, found = self._store.approvals, 0
        async for page in pages_by_score(self._store.conn, keys.expiry):
            ids = await self._store.members.approvals(keys, keys.expiry, page)
            for loaded in await approvals.load_each(ids):
                run_ref = loaded.approval.run_ref
                job = Job.to_resume(self._tenant, run_ref.agent, run_ref.thread)
                is_ours = loaded.approval.tenant == self._tenant
                if is_ours and run_ref.agent in agents and job not in seen:
                    seen.add(job)
                    if not _is_among(job, jobs):
                        found += await self._queue_if_orphan(job) is True
        return found

    async def _look_for(self, agent: str, outbox: Outbox) -> int:
        found = 0
        # Bounded: a flood of one agent's events must not keep the others from their
        # look.
        for _ in range(_ROUNDS):
            taken = await outbox.take(
                self._consumer, block_ms=_NO_WAIT_MS, limit=_BATCH
            )
            await outbox.done(
                *(one.seq for one in taken if not self._is_of(one, agent))
            )
            rested = await outbox.unfinished(
                self._consumer, idle_ms=self._rest_ms, limit=_BATCH
            )
            found += await self._look_at(outbox, agent, rested)
            if len(taken) < _BATCH and len(rested) < _BATCH:
                break
        return found

    async def _look_at(
        self, outbox: Outbox, agent: str, events: Sequence[Event]
    ) -> int:
        found, left = 0, set[str]()
        if not events:
            return found
        jobs = await self._store.queue(self._keys_of(agent)).texts(_MOST_JOBS)
        ours = (one.run_ref.thread for one in events if self._is_of(one, agent))
        for thread in dict.fromkeys(ours):
            job = Job.to_resume(self._tenant, agent, thread)
            has_job = jobs is None or _is_among(job, jobs)
            is_orphan = None if has_job else await self._queue_if_orphan(job)
            found += is_orphan is True
            if is_orphan is None:
                left.add(thread)
        young_ms = await self._store.conn.now_ms(self._keys_of(agent).outbox) - LEFT_MS
        await outbox.done(
            *(
                one.seq
                for one in events
                if one.run_ref.thread not in left or one.at_ms < young_ms
            )
        )
        return found

    async def _queue_if_orphan(self, job: Job) -> bool | None:
        """Queue a thread that could go on; None when that is not known here.

        One thread that cannot be read keeps no other from being looked at.
        """
        runner = self._runners.of(job.agent, job.thread)
        if runner is None:
            return None
        try:
            is_orphan = not await self._is_known_to_fail(job) and await self._is_orphan(
                job, runner
            )
        except NewerRecord as error:
            logger.warning("record.newer %s", error)
            return None
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            log_failure(
                logger,
                error,
                "thread.unread agent=%s thread=%s",
                job.agent,
                job.thread,
            )
            return None
        if is_orphan and job in self._queued:
            return False
        if is_orphan:
            self._queued.add(job)
            logger.warning("thread.orphaned agent=%s thread=%s", job.agent, job.thread)
            await self._store.queue(self._keys_of(job.agent)).put(job)
        return is_orphan

    async def _is_known_to_fail(self, job: Job) -> bool:
        """Return True if a thread stands still because its run waits or was ended."""
        keys, stalled = self._keys_of(job.agent), self._store.stalled
        run = keys.stalled_run(job.tenant, job.agent, job.thread)
        return bool(
            await stalled.find(keys, run) or await stalled.is_dropped(keys, run)
        )

    async def _is_orphan(self, job: Job, runner: Runner) -> bool:
        state = await runner.probe(job.thread)
        if not state.exists or state.is_finished:
            return False
        if state.is_cut_off:
            return True  # or it runs right now: then its job waits for the lease
        answers = await answers_for(self._store, job.agent, job.thread, state.pending)
        return bool(answers.ready)

    def _is_of(self, event: Event, agent: str) -> bool:
        is_about_a_thread = bool(event.agent and event.thread)
        return (
            is_about_a_thread
            and (event.tenant, event.run_ref.agent) == (self._tenant, agent)
            # A run that failed is retried or parked by `twokey.gateway.resume.retries`.
            and event.name not in TROUBLED_RUN
        )

    def _reader(self, agent: str) -> Outbox:
        name = f"{READERS}:{json.dumps([self._tenant, agent])}"
        return self._store.outbox(self._keys_of(agent), reader=name)

    def _keys_of(self, agent: str) -> Keys:
        return self._store.keys_of_agent(self._tenant, agent)


def _is_among(job: Job, jobs: Collection[bytes]) -> bool:
    """Return whether one of these jobs, by their texts, resumes the same thread."""
    return resume_text(job.tenant, job.agent, job.thread).encode() in jobs
