"""Find threads that could go on and that no job will bring forward.

Every event names its thread, so this is one more reader of the outbox: it takes each
event, leaves it unacknowledged, and gets it back once it has rested for a while. Then
the thread is looked at, and queued when it could go on. Nothing is kept in memory, any
replica may do it, and a thread nobody touches costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gateway.approvals.events import Event, EventName
from gateway.resume.answers import answers_for
from gateway.resume.runner import Runner
from gateway.resume.runners import Runners
from gateway.store.jobs import Job, JobKind
from gateway.store.keys import Keys
from gateway.store.outbox import Outbox
from gateway.store.store import Store

logger = logging.getLogger(__name__)

READER = "orphans"
REST_MS = 20_000
"""How long after an event its thread is looked at: longer than a lease lives."""
_BATCH = 500
_ROUNDS = 20
_NO_WAIT_MS = 1
_IGNORED = {EventName.RUN_FAILED}
"""A thread that was given up stays so until something else happens to it."""


class OrphanFinder:
    """Look after the threads of the agents that this process runs.

    Args:
        store: where events, items and jobs are kept.
        runners: what this process runs.
        consumer: name of this process among the readers.
        rest_ms: how long a thread may be left alone after an event.
    """

    def __init__(
        self,
        store: Store,
        runners: Runners,
        *,
        consumer: str,
        rest_ms: int = REST_MS,
    ) -> None:
        self._store = store
        self._runners = runners
        self._consumer = consumer
        self._rest_ms = rest_ms
        self._prepared: set[str] = set()

    async def look(self) -> int:
        """Queue every orphan whose time has come; return how many were found."""
        found = 0
        for keys in self._store.every_shard():
            outbox = self._store.outbox(keys, reader=READER)
            if keys.shard not in self._prepared:
                await outbox.prepare()
                self._prepared.add(keys.shard)
            for _ in range(_ROUNDS):
                taken = await outbox.take(
                    self._consumer, block_ms=_NO_WAIT_MS, limit=_BATCH
                )
                rested = await outbox.unfinished(
                    self._consumer, idle_ms=self._rest_ms, limit=_BATCH
                )
                found += await self._look_at(keys, outbox, rested)
                if len(taken) < _BATCH and len(rested) < _BATCH:
                    break
        return found

    async def _look_at(
        self, keys: Keys, outbox: Outbox, events: Sequence[Event]
    ) -> int:
        found = 0
        for job in _threads(events):
            runner = self._runners.of(job.agent, job.thread)
            if runner is not None and await self._is_orphan(job, runner):
                logger.warning(
                    "thread.orphaned agent=%s thread=%s", job.agent, job.thread
                )
                await self._store.queue(keys).put(job)
                found += 1
        await outbox.done(*(event.seq for event in events))
        return found

    async def _is_orphan(self, job: Job, runner: Runner) -> bool:
        state = await runner.probe(job.thread)
        if not state.exists or state.is_finished:
            return False
        if state.is_cut_off:
            return True  # or it runs right now: then its job waits for the lease
        answers = await answers_for(self._store, job.agent, job.thread, state.pending)
        return bool(answers.ready)


def _threads(events: Sequence[Event]) -> list[Job]:
    jobs = {
        (event.tenant, event.home.agent, event.home.thread): Job(
            kind=JobKind.RESUME,
            tenant=event.tenant,
            agent=event.home.agent,
            thread=event.home.thread,
        )
        for event in events
        if event.agent and event.thread and event.name not in _IGNORED
    }
    return list(jobs.values())
