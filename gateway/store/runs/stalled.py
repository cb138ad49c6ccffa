"""Store failed runs: those to be retried, and parked ones.

A run has one record from its first failure until it continues or is dropped. The record
also has the run's remaining jobs. Record, jobs, events and the acknowledgement of the
failed job change in one step, so a crash cannot separate them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, cast

from pydantic import Field, PrivateAttr

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import Argument, fields, number, text
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.runs.jobs import GROUP, Job
from keyturn.gateway.store.sealing.conditional_write import Check, write_if
from keyturn.gateway.store.sealing.sealing import Repository

HALTED = "halted"
"""Field of a thread's facts: the checkpoint of a halt, and the reason."""

_END_OF_YEAR_9999_MS = 253_402_300_799_999

logger = logging.getLogger(__name__)

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
