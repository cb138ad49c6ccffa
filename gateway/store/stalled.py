"""Store failed runs: those to be retried, and parked ones (dead letters).

A run has one record here from its first failure until it goes on or is dropped, and
the jobs that it still needs stand in it. Record, jobs, events and the acknowledgement
of the job that failed change in one step, so that no crash leaves one without another.
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
from keyturn.gateway.store.audit_seals import event_texts
from keyturn.gateway.store.connection import Connection, fields, number, text
from keyturn.gateway.store.jobs import GROUP, Job
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.listed_members import without_junk
from keyturn.gateway.store.script import Script, texts

STALL = Script("stall", is_fenced=True)
HALTED = "halted"
"""Field of a thread's facts: at which checkpoint it was halted, and why."""

_END_OF_YEAR_9999_MS = 253_402_300_799_999

logger = logging.getLogger(__name__)

Moment = Annotated[int, Field(ge=0, le=_END_OF_YEAR_9999_MS)]
"""Unix milliseconds that a calendar has a day for; 0 for never."""


class RunState(StrEnum):
    """Whether a run that failed is retried by itself (waiting) or not (parked)."""

    WAITING = "waiting"
    PARKED = "parked"


class StalledRun(Record):
    """One run that failed and did not go on since.

    Attributes:
        id: names the run; the same for a thread of an agent for ever.
        outage: id of this series of failures; a later one of the thread has another.
        state: whether it is retried by itself.
        trouble: kind of the last error; see
            `keyturn.gateway.resume.diagnosis.ErrorKind`.
        reason: one sentence about it that anybody may read.
        detail: the error's classes and the places that it came through.
        can_pass: the error may pass by itself; a parked run is then retried at a start.
        attempts: how often it failed in this outage.
        since_ms: when it failed first.
        retried_since_ms: when the time for retries began: then, or at a Try again.
        at_ms: since when it is in its state.
        next_ms: when it is retried next; 0 for a parked run.
        until_ms: when it is parked if it fails still; 0 for never.
        unserved_since_ms: since when no process takes its jobs; 0: one did.
        is_announced: people are told of it.
        announced: what people read last of it.
        is_listed: it counts among those that wait or are parked; not so while its job
            is only offered to a process that may serve it.
        jobs: what is still to do, oldest first.
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
        """Read a record, and remember its text, which a change compares."""
        found = cls.model_validate_json(body)
        found._body = body  # noqa: SLF001 - its own
        return found

    @property
    def body(self) -> str:
        """Return the text that was read, which a change is made of."""
        return self._body or self.model_dump_json()


class StalledRuns:
    """The runs of all tenants that failed."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def find(self, keys: Keys, run: str) -> StalledRun | None:
        """Return a run that failed; None when it goes on, or never did.

        A corrupt record is removed: it would keep its thread from going
        on for ever.
        """
        body = cast("bytes", await self._conn.command("HGET", keys.stalled, run) or b"")
        if not body:
            return None
        try:
            return _read(keys, run, body)
        except CorruptRecord as error:
            log_failure(logger, error, "run.corrupt")
            # By the text that was read: if somebody wrote a sound record meanwhile, it
            # stays.
            await self.change(keys, run, body, None)
            return None

    async def all(self, keys: Keys) -> list[StalledRun]:
        """Return every run of a tenant that failed, the longest waiting first.

        Corrupt records are left out, so that they stop no other.
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
        """Return how many runs of a tenant wait to be retried, and how many are parked.

        Raises:
            StoreUnavailable: when nothing can be read.
        """
        waiting, parked = await self._conn.transaction(
            ["ZCARD", keys.stalled_waiting], ["ZCARD", keys.stalled_parked]
        )
        return number(waiting), number(parked)

    async def began_before(self, keys: Keys, at_ms: int) -> list[str]:
        """Return ids of runs that wait, or are parked, since before a moment."""
        names = (keys.stalled_parked, keys.stalled_waiting)
        lists = await self._conn.transaction(
            ["ZRANGEBYSCORE", names[0], 0, at_ms], ["ZRANGEBYSCORE", names[1], 0, at_ms]
        )
        return [
            one
            for name, found in zip(names, lists, strict=True)
            for one in await without_junk(self._conn, name, found, text)
        ]

    async def is_dropped(self, keys: Keys, run: str) -> bool:
        """Return True if somebody dropped the run and it did not begin again since."""
        return bool(await self._conn.command("EXISTS", keys.dropped(run)))

    async def taken_up(self, keys: Keys, run: str) -> bool:
        """Let a thread go on that is given something new; say if it was dropped."""
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
        """Change a run's record; False when it is not what was read.

        Nothing changes when the job that is put back was put back by another meanwhile:
        the worker that does it next records the result.

        Args:
            keys: of the tenant.
            run: id of the run.
            before: what was read, or its text when it cannot be; None for nothing.
            after: what is kept from now on; None when it goes on or was dropped.
            delivery: id of the job that is done with; "" for none.
            undone: jobs that are no longer to be retried.
            again: jobs to do.
            delay_ms: after how long, by the store's clock; 0 for now.
            is_dropped: the run is not advanced any more.
            forgotten: a field of the thread's facts that is deleted.
            events: what is announced.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """
        known = before if isinstance(before, StalledRun) else None
        body = before.body if isinstance(before, StalledRun) else before or b""
        facts = _facts_of(keys, after or known)
        # What is only offered to another process is kept, and neither counted nor
        # parked.
        listed = after.state.value if after and after.is_listed else ""
        state = "dropped" if is_dropped else listed
        at_ms = 0
        if after is not None:
            is_waiting = after.state is RunState.WAITING
            at_ms = after.since_ms if is_waiting else after.at_ms
        reply = await STALL(
            self._conn,
            runs=keys.stalled,
            waiting=keys.stalled_waiting,
            parked=keys.stalled_parked,
            dropped=keys.dropped(run),
            facts=facts,
            retry=keys.retry,
            jobs=keys.jobs,
            outbox=keys.outbox,
            audit=keys.audit,
            id=run,
            before=body,
            after=after.model_dump_json() if after else "",
            state=state,
            at_ms=at_ms,
            group=GROUP,
            delivery=delivery,
            undone=texts(undone),
            again=texts(again),
            delay_ms=delay_ms,
            keep_ms=KEEP_MS,
            forgotten=forgotten,
            events=event_texts(self._conn, keys, events),
        )
        return text(reply[0]) != "moved"


def _read(keys: Keys, run: str, raw: bytes) -> StalledRun:
    """Read the record of a run.

    Raises:
        CorruptRecord: when it cannot be parsed, or another run's.
    """
    try:
        found = StalledRun.read(raw.decode())
    except ValueError as error:
        raise CorruptRecord(run) from error
    whose = keys.stalled_run(found.agent, found.thread)
    # A record under another run's id would let one thread's failure park another one.
    if not run == found.id == whose:
        raise CorruptRecord(run)
    return found


def _facts_of(keys: Keys, run: StalledRun | None) -> str:
    """Return the key of the facts of a run's thread; of nobody's when none is read."""
    if run is None:
        return keys.thread_facts("", "")
    return keys.thread_facts(run.agent, run.thread)
