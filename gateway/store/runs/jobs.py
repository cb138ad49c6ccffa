"""Job queue on Redis Streams to start and resume agents, and their failed runs.

A job is delivered at least once. A failed run has one record from its first failure
until it continues or is dropped. The record also has the run's remaining jobs. Record,
jobs, events and the acknowledgement of the failed job change in one step, so a crash
cannot separate them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import Annotated, cast

from pydantic import Field, PrivateAttr

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.errors import CorruptRecord, StoreUnavailable
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import (
    Argument,
    Connection,
    Entry,
    Reply,
    claimed,
    fields,
    first_stream,
    number,
    text,
)
from keyturn.gateway.store.events.outbox import make_group
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.sealing import (
    Check,
    Repository,
    Sealed,
    Sealing,
    write_if,
)

REQUEUE = Script("requeue")

logger = logging.getLogger(__name__)

GROUP = "workers"
_CONSUMER = "worker"
"""One for all processes: a job is taken over by its idle time. Redis would keep a
consumer of each process for ever.
"""

_LOOKS = 60
"""Checks for abandoned jobs per lease lifetime, at most."""


class JobKind(StrEnum):
    """Kind of a job."""

    START = "start"
    RESUME = "resume"


class Job(Record):
    """Advance one thread: start it with an input, or resume it with its decisions.

    ``id`` distinguishes two starts with the same input. Resume jobs have no ``id``:
    equal ones count as one job. In the store, the input of a start job is sealed, so
    that write access to the store is not enough to start an agent. A resume job is only
    a hint: the worker acts on the sealed record.
    """

    kind: JobKind
    tenant: str
    agent: str
    thread: str
    input: str = ""
    id: str = ""

    @classmethod
    def to_resume(cls, tenant: str, agent: str, thread: str) -> Job:
        """Return the job that resumes a thread with its answers."""
        return cls(kind=JobKind.RESUME, tenant=tenant, agent=agent, thread=thread)


def sealed_job(sealing: Sealing, job: Job) -> Job:
    """Return a start job in stored form, with a sealed input."""
    place, text = _place(job), json.dumps([job.input])
    return job.with_(input=sealing.sealed_text(Sealed.JOB, place, text))


def input_of(sealing: Sealing, job: Job) -> str:
    """Return the input of a start job in stored form.

    Raises:
        ValueError: its seal is invalid, or its key is no longer configured.
    """
    stored = job.input.encode()
    body = sealing.opened_text(Sealed.JOB, _place(job), stored)
    if body is None:
        raise ValueError("the input of a job is not sealed for it")
    return str(json.loads(body)[0])


def _place(job: Job) -> tuple[str, ...]:
    return job.tenant, job.agent, job.thread, job.id


@dataclass(frozen=True)
class Delivery:
    """A job delivered to one worker, with its stream id."""

    id: str
    job: Job


class JobQueue:
    """The jobs of one tenant, read by one consumer group."""

    def __init__(
        self, conn: Connection, keys: Keys, sealing: Sealing, *, lease_ms: int
    ) -> None:
        self._conn = conn
        self._sealing = sealing
        self._keys = keys
        self._lease_ms = lease_ms
        self._next_look_s = 0.0

    async def prepare(self) -> None:
        """Create the consumer group if it is missing."""
        await make_group(self._conn, self._keys.jobs, GROUP)

    async def waiting(self) -> int:
        """Return the number of jobs that no worker has taken."""
        await self.prepare()
        jobs = number(await self._conn.command("XLEN", self._keys.jobs))
        pending = await self._conn.command("XPENDING", self._keys.jobs, GROUP)
        return jobs - number(cast("Mapping[str, Reply]", pending)["pending"])

    async def put(self, job: Job) -> None:
        """Queue a job in stored form."""
        await self._conn.keep(
            ["XADD", self._keys.jobs, "*", "j", job.model_dump_json()]
        )

    async def take(self, *, block_ms: int) -> Delivery | None:
        """Take one job: an abandoned one first, else a new one within ``block_ms``.

        One at a time: a second job would age while the first one runs. Invalid entries
        are reported and dropped, so that they do not block other jobs.
        """
        while True:
            entry = await self._next(block_ms)
            if entry is None:
                return None
            job: Job | None = None
            with suppress(ValueError):
                job = Job.model_validate_json(entry.values.get("j", b""))
                if job.kind is JobKind.START:
                    input_of(self._sealing, job)
                return Delivery(id=entry.id, job=job)
            logger.error("job.corrupt job=%s", entry.id)
            await self._sealing.refuse(
                self._keys,
                Sealed.JOB,
                b"\n".join(entry.values.values()),
                agent=job.agent if job else "",
                thread=job.thread if job else "",
            )
            await self._drop(entry.id)

    async def _next(self, block_ms: int) -> Entry | None:
        found = await self._abandoned()
        if not found:
            reply = await self._conn.command(
                "XREADGROUP", "GROUP", GROUP, _CONSUMER, "COUNT", 1,
                "BLOCK", block_ms, "STREAMS", self._keys.jobs, ">",
            )  # fmt: skip
            found = first_stream(reply)
        return found[0] if found else None

    async def _abandoned(self) -> list[Entry]:
        """Claim an abandoned job, but check only from time to time."""
        now_s = monotonic()
        if now_s < self._next_look_s:
            return []
        # Start at the beginning: the oldest abandoned job comes first. A job is
        # abandoned when its worker sent no heartbeat for one lease lifetime.
        found = claimed(
            await self._conn.command(
                "XAUTOCLAIM", self._keys.jobs, GROUP, _CONSUMER, self._lease_ms,
                "0", "COUNT", 1,
            )
        )  # fmt: skip
        # There may be more: a crashed worker can leave several.
        self._next_look_s = 0.0 if found else now_s + self._lease_ms / _LOOKS / 1000
        return found

    async def done(self, delivery: Delivery) -> None:
        """Acknowledge a job and drop it."""
        await self._drop(delivery.id)

    async def _drop(self, delivery: str) -> None:
        await self._conn.transaction(
            ["XACK", self._keys.jobs, GROUP, delivery],
            # XACK alone leaves the entry in the stream, which is never trimmed.
            ["XDEL", self._keys.jobs, delivery],
        )

    async def later(self, delivery: Delivery, *, delay_ms: int) -> None:
        """Put a job back without counting a failure, because its thread is busy.

        Does nothing if another worker has put it back or finished it.
        """
        jobs, retry = self._keys.jobs, self._keys.retry
        due_ms = await self._conn.now_ms(jobs) + delay_ms
        await write_if(
            self._conn,
            self._keys,
            # The acknowledgement is the check: only one worker's counts.
            [(["XACK", jobs, GROUP, delivery.id], 1)],
            ["XDEL", jobs, delivery.id],
            ["ZADD", retry, due_ms, delivery.job.model_dump_json()],
        )

    async def requeue_due(self, limit: int = 100) -> int:
        """Move jobs whose back-off is over into the stream; return their number."""
        reply = await REQUEUE(
            self._conn, retry=self._keys.retry, jobs=self._keys.jobs, limit=limit
        )
        return number(reply[1])

    async def depth(self) -> int:
        """Return the number of jobs that wait, run or back off."""
        streams = number(await self._conn.command("XLEN", self._keys.jobs))
        return streams + number(await self._conn.command("ZCARD", self._keys.retry))

    async def renew(self, delivery: Delivery) -> None:
        """Prevent others from taking over a delivery for another lease lifetime."""
        with suppress(StoreUnavailable):
            # No JUSTID: redis-py cannot parse that reply. The consumer claims its own
            # entry, which resets the idle time.
            await self._conn.command(
                "XCLAIM", self._keys.jobs, GROUP, _CONSUMER, 0, delivery.id
            )


HALTED = "halted"
"""Field of a thread's facts: the checkpoint of a halt, and the reason."""

_END_OF_YEAR_9999_MS = 253_402_300_799_999


Moment = Annotated[int, Field(ge=0, le=_END_OF_YEAR_9999_MS)]
"""Unix milliseconds within the calendar's range; 0 for never."""


class RunState(StrEnum):
    """Whether a failed run is retried automatically (waiting) or not (parked)."""

    WAITING = "waiting"
    PARKED = "parked"


class StalledRun(Record):
    """A failed run.

    Attributes:
        id: id of the run, fixed for a thread of an agent.
        outage: id of this series of failures; a later series gets a new one.
        state: whether it is retried automatically.
        trouble: kind of the last error; see
            `keyturn.gateway.resume.diagnosis.ErrorKind`.
        reason: a public sentence about the error.
        detail: the error's classes and code locations.
        can_pass: True if the error may be temporary; a parked run is then retried when
            a process starts.
        attempts: failures in this outage.
        since_ms: time of the first failure.
        retried_since_ms: start of the time for retries: the first failure, or a click
            on Try again.
        at_ms: start of the current state.
        next_ms: time of the next retry; 0 for a parked run.
        until_ms: time from which a failure parks it; 0 for never.
        unserved_since_ms: since when no process takes its jobs; 0 if one did.
        is_announced: True if people were informed.
        announced: the text last shown to people.
        is_listed: True if it counts as waiting or parked. False while its job is only
            offered to another process.
        jobs: remaining jobs, oldest first.
    """

    id: str
    outage: str
    tenant: str
    agent: str
    thread: str
    state: RunState
    trouble: str
    reason: str
    detail: str = ""
    can_pass: bool = False
    attempts: int = 0
    since_ms: Moment
    retried_since_ms: Moment
    at_ms: Moment
    next_ms: Moment = 0
    until_ms: Moment = 0
    unserved_since_ms: Moment = 0
    is_announced: bool = False
    announced: str = ""
    is_listed: bool = True
    jobs: tuple[Job, ...] = ()

    _body: str = PrivateAttr(default="")

    @classmethod
    def read(cls, body: str) -> StalledRun:
        """Parse a record, and keep its text for comparison."""
        found = cls.model_validate_json(body)
        found._body = body  # noqa: SLF001 - its own
        return found

    @property
    def body(self) -> str:
        """Return the stored text on which a change is based."""
        return self._body or self.model_dump_json()


class StalledRuns(Repository):
    """Failed runs of all tenants."""

    async def find(self, keys: Keys, run: str) -> StalledRun | None:
        """Return a failed run; None if it has not failed or has continued.

        A corrupt record is removed; otherwise it would block its thread forever.
        """
        body = cast("bytes", await self._conn.command("HGET", keys.stalled, run) or b"")
        if not body:
            return None
        try:
            return _read(keys, run, body)
        except CorruptRecord as error:
            log_failure(logger, error, "run.corrupt")
            # Compared by text, so that a new valid record stays.
            await self.change(keys, run, body, None)
            return None

    async def all(self, keys: Keys) -> list[StalledRun]:
        """Return a tenant's failed runs, longest waiting first.

        Corrupt records are skipped, so that they do not hide others.
        """
        found = fields(await self._conn.command("HGETALL", keys.stalled))
        runs: list[StalledRun] = []
        for run, body in found.items():
            try:
                runs.append(_read(keys, run, body))
            except CorruptRecord as error:
                log_failure(logger, error, "run.corrupt")
        return sorted(runs, key=lambda one: one.since_ms)

    async def counts(self, keys: Keys) -> tuple[int, int]:
        """Return the numbers of a tenant's waiting and of its parked runs.

        Raises:
            StoreUnavailable: when nothing can be read.
        """
        states = [one.state for one in await self.all(keys) if one.is_listed]
        return states.count(RunState.WAITING), states.count(RunState.PARKED)

    async def taken_up(self, keys: Keys, run: str) -> bool:
        """Allow a thread with a new input to continue; return if it was dropped."""
        return number(await self._conn.command("DEL", keys.dropped(run))) == 1

    async def change(  # noqa: PLR0913 - one step, by name
        self,
        keys: Keys,
        run: str,
        before: StalledRun | bytes | None,
        after: StalledRun | None,
        *,
        delivery: str = "",
        undone: Sequence[Job] = (),
        again: Sequence[Job] = (),
        delay_ms: int = 0,
        is_dropped: bool = False,
        forgotten: str = "",
        events: Sequence[Event] = (),
    ) -> bool:
        """Change a run's record; False if it changed since it was read.

        True if another worker has put the job back or finished it: that worker records
        the result, so nothing changes.

        Args:
            keys: keys of the tenant.
            run: id of the run.
            before: the record that was read, or its text if malformed; None for none.
            after: the new record; None if the run continues or was dropped.
            delivery: id of the finished job; "" for none.
            undone: jobs whose retries are cancelled.
            again: jobs to queue.
            delay_ms: delay of these jobs by the store's clock; 0 for now.
            is_dropped: True if the run is dropped.
            forgotten: a field of the thread's facts to delete.
            events: events to announce.

        Raises:
            StoreUnavailable: when the result is unknown.
            LeaseLost: another process has the lease now; nothing was written.
        """
        known = before if isinstance(before, StalledRun) else None
        body = before.body if isinstance(before, StalledRun) else before or b""
        jobs = [one.model_dump_json() for one in again]
        checks: list[Check] = [(["HGET", keys.stalled, run], body)]
        writes: list[list[Argument]] = [["HDEL", keys.stalled, run]]
        if after:
            writes = [["HSET", keys.stalled, run, after.model_dump_json()]]
        if delivery:
            acknowledged: list[Argument] = ["XACK", keys.jobs, GROUP, delivery]
            # The acknowledgement is the last check: only one worker's counts. Without
            # jobs to queue, a repeated one is harmless.
            if jobs:
                checks.append((acknowledged, 1))
            else:
                writes.append(acknowledged)
            writes.append(["XDEL", keys.jobs, delivery])
        if is_dropped:
            writes.append(["SET", keys.dropped(run), 1, "PX", KEEP_MS])
        if undone:
            bodies = [one.model_dump_json() for one in undone]
            writes.append(["ZREM", keys.retry, *bodies])
        writes += await self._queueing(keys, jobs, delay_ms)
        # Without a record, the facts of no thread.
        if forgotten and (whose := after or known):
            facts = keys.thread_facts(whose.agent, whose.thread)
            writes.append(["HDEL", facts, forgotten])
        if await write_if(
            self._conn, keys, checks, *writes,
            outbox=events, audit=events, is_fenced=True,
        ):  # fmt: skip
            return True
        # With an unchanged record, only the acknowledgement can have failed.
        stored = await self._conn.command("HGET", keys.stalled, run)
        return bool(delivery and jobs) and text(stored) == (known.body if known else "")

    async def _queueing(
        self, keys: Keys, jobs: Sequence[str], delay_ms: int
    ) -> list[list[Argument]]:
        if not jobs:
            return []
        if delay_ms:
            due_ms = await self._conn.now_ms(keys.retry) + delay_ms
            return [["ZADD", keys.retry, due_ms, one] for one in jobs]
        # All resume jobs of a thread have the same text, so this cancels a later one.
        added: list[list[Argument]] = [["XADD", keys.jobs, "*", "j", it] for it in jobs]
        return [["ZREM", keys.retry, *jobs], *added]


def _read(keys: Keys, run: str, raw: bytes) -> StalledRun:
    """Parse the record of a run.

    Raises:
        CorruptRecord: when it is malformed, or belongs to another run.
    """
    try:
        found = StalledRun.read(raw.decode())
    except ValueError as error:
        raise CorruptRecord(run) from error
    whose = keys.stalled_run(found.agent, found.thread)
    # Under another run's id, one thread's failure could park another thread.
    if not run == found.id == whose:
        raise CorruptRecord(run)
    return found
