"""Store the third-party interrupts that people were told of, and their expiry."""

from __future__ import annotations

from dataclasses import dataclass

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.store.connection import Argument, Connection, fields
from keyturn.gateway.store.jobs import Job
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.listed_members import readable_fields
from keyturn.gateway.store.outbox import announcement

_ENDED = "ended"


@dataclass(frozen=True)
class AnnouncedInterrupt:
    """One interrupt that people were told of; ``until_ms`` is 0 once it has ended."""

    id: str
    until_ms: int


class InterruptStore:
    """The interrupts that people were told of; the caller holds the thread's lease."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def all(self, keys: Keys, job: Job) -> dict[str, AnnouncedInterrupt]:
        """Return the interrupts of a job's thread by id."""
        key = keys.questions(job.agent, job.thread)
        found = fields(await self._conn.command("HGETALL", key))

        def read(name: str, at: bytes) -> AnnouncedInterrupt:
            return AnnouncedInterrupt(name, 0 if at.decode() == _ENDED else int(at))

        return readable_fields(found, read)

    async def ask(
        self,
        keys: Keys,
        job: Job,
        interrupt: AnnouncedInterrupt,
        event: Event,
        words: str,
    ) -> None:
        """Tell people of an interrupt, and queue the job that ends it.

        The audit log, which nobody can erase, gets the event without the words.
        """
        key = keys.questions(job.agent, job.thread)
        outbox_event = (
            event.with_(data={**event.data, "text": words}) if words else event
        )
        await self._conn.keep(
            *announcement(
                self._conn, keys, outbox_event, event, await self._conn.now_ms(key)
            ),
            ["HSET", key, interrupt.id, interrupt.until_ms],
            ["PEXPIREAT", key, interrupt.until_ms + KEEP_MS],
            _due(keys, job, interrupt.until_ms),
        )

    async def arm(self, keys: Keys, job: Job, at_ms: int) -> None:
        """Queue the job that ends an interrupt, unless it comes sooner."""
        await self._conn.keep(_due(keys, job, at_ms))

    async def end(self, keys: Keys, job: Job, ids: list[str], event: Event) -> None:
        """Note that interrupts have ended, and tell people."""
        key = keys.questions(job.agent, job.thread)
        marks: list[Argument] = [part for one in ids for part in (one, _ENDED)]
        await self._conn.keep(
            *announcement(self._conn, keys, event, event, await self._conn.now_ms(key)),
            ["HSET", key, *marks],
            ["PEXPIRE", key, KEEP_MS],
        )


def _due(keys: Keys, job: Job, at_ms: int) -> list[Argument]:
    return ["ZADD", keys.retry, "LT", at_ms, job.model_dump_json()]
