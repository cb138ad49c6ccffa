"""Job queue on Redis Streams to start and resume agents, at least once."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import cast

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import (
    Connection,
    Entry,
    Reply,
    claimed,
    first_stream,
    number,
)
from keyturn.gateway.store.events.readers import make_group
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.conditional_write import write_if
from keyturn.gateway.store.sealing.sealing import Sealed, Sealing

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
