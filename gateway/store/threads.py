"""Store facts about threads: requester, location in Slack, active run, interrupts.

The interrupts are those of other libraries that people were told of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.errors import StoreUnavailable, TooManySpeakers
from keyturn.gateway.protocol.records import Person, Record, RunRef
from keyturn.gateway.store.audit_seals import sealed_text
from keyturn.gateway.store.connection import Argument, Connection, Reply, fields, text
from keyturn.gateway.store.encryption import packed, unpacked
from keyturn.gateway.store.fences import Lease
from keyturn.gateway.store.jobs import Job, sealed_job
from keyturn.gateway.store.keys import KEEP_MS, MESSAGE_LIFETIME, Keys
from keyturn.gateway.store.leases import LeaseStore
from keyturn.gateway.store.listed_members import readable_fields
from keyturn.gateway.store.outbox import announcement
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.sealing import Sealed, Sealing

REMEMBER = Script("remember")
ASK = Script("ask")
END_RUN = Script("end_run")

_SEEN_MS = int(MESSAGE_LIFETIME.total_seconds() * 1000)

# As for approvals: each attempt that is lost is somebody else's that went through.
_ATTEMPTS = 16

# The lease and its fence come from the context: `Script` reads `fences.current`.
ANNOUNCE = Script("announce", is_fenced=True)

MAX_PRINCIPALS = 100
"""How many people may speak in a thread: each is remembered."""

Mark = Literal["begun", "ended", "digest", "waiting", "corrected"]
"""What is announced once for each of its marks: see `ThreadStore.tell`."""

_ENDED = "ended"


class ThreadFacts(Record):
    """Who asked the agent in this thread, and where its words belong.

    ``requester`` asked last; ``principals`` asked before, or outside of the run.
    ``is_partial`` says that others asked before of whom nothing is known any more:
    then nobody can tell who must not decide.
    """

    requester: Person | None = None
    origin: Origin | None = None
    principals: tuple[Person, ...] = ()
    is_partial: bool = False

    def asked_by(self, requester: Person) -> ThreadFacts:
        """Return the facts after somebody asked; nobody before them is forgotten.

        Raises:
            TooManySpeakers: when more than `MAX_PRINCIPALS` would be remembered.
        """
        before = () if self.requester is None else (self.requester,)
        return self.with_(requester=requester).joined(before)

    def joined(self, people: Iterable[Person]) -> ThreadFacts:
        """Return the facts with more people who may have asked for what comes.

        Raises:
            TooManySpeakers: when more than `MAX_PRINCIPALS` would be remembered.
        """
        # One person, whatever name they had at the time.
        known = {(one.team, one.user): one for one in (*self.principals, *people)}
        speakers = {*known}
        # The requester counts against the limit as well: with the next message they
        # become one of the principals.
        if self.requester is not None:
            speakers.add((self.requester.team, self.requester.user))
        if len(speakers) > MAX_PRINCIPALS:
            # Refused and not forgotten: a speaker who is left out could approve what
            # they asked for.
            raise TooManySpeakers(MAX_PRINCIPALS)
        return self.with_(principals=tuple(known.values()))


Whose = tuple[Keys, str, str]
"""Keys of the tenant, agent and thread."""

_NUMBER_BYTES = 8
"""Before the facts stands how often they changed, so that older ones are noticed."""


@dataclass(frozen=True)
class StoredFacts:
    """The facts of a thread as they were read.

    Attributes:
        facts: empty ones of nothing; where they are not believed, nobody is known.
        number: how often they changed.
        is_refused: they were not sealed for this thread, or are older than known ones.
        is_older: the latter.
    """

    facts: ThreadFacts = field(default_factory=ThreadFacts)
    number: int = 0
    is_refused: bool = False
    is_older: bool = False


async def read_facts(sealing: Sealing, whose: Whose, stored: Reply) -> StoredFacts:
    """Read the facts of a thread, as they are stored; report those not believed."""
    keys, agent, thread = whose
    key, body = keys.thread_facts(agent, thread), cast("bytes", stored or b"")
    found = _opened(sealing, key, body)
    if found.is_refused:
        await sealing.refuse(
            keys,
            Sealed.FACTS,
            body,
            agent=agent,
            thread=thread,
            is_older=found.is_older,
        )
    return found


def _opened(sealing: Sealing, key: str, stored: bytes) -> StoredFacts:
    if not stored:
        # Their lifetime may have ended, so nothing is no older state.
        return StoredFacts()
    opened = sealing.opened(Sealed.FACTS, (key,), stored)
    if opened is None:
        return StoredFacts(_unknown(stored), sealing.newest(key), is_refused=True)
    number, body = int.from_bytes(opened[:_NUMBER_BYTES]), opened[_NUMBER_BYTES:]
    if sealing.is_older(key, number):
        newest = sealing.newest(key)
        return StoredFacts(_unknown(body), newest, is_refused=True, is_older=True)
    return StoredFacts(ThreadFacts.model_validate_json(unpacked(body)), number)


def _unknown(body: bytes) -> ThreadFacts:
    """Return facts of which nobody can tell who asked: two people have to approve.

    Whom a text names that is not believed may not be one of them all the same.
    """
    people: tuple[Person, ...] = ()
    with suppress(ValueError):
        found = ThreadFacts.model_validate_json(unpacked(body))
        asked = () if found.requester is None else (found.requester,)
        people = (*asked, *found.principals)[:MAX_PRINCIPALS]
    return ThreadFacts(is_partial=True, principals=people)


Why = Literal["begin", "open", "aside"]
"""Why facts change.

``begin``: somebody asked in the thread. ``open``: a run of it starts, and its past was
looked at. ``aside``: the thread of an agent inside another run's tool gets the people
of that run; it has no run of its own.
"""


class ThreadStore:
    """Facts and leases of threads.

    Attributes:
        at_work: agents and threads that this process runs at this moment.
    """

    def __init__(self, conn: Connection, sealing: Sealing, *, lease_ms: int) -> None:
        self._conn = conn
        self._sealing = sealing
        self.leases = LeaseStore(conn, lease_ms=lease_ms)
        self.at_work = set[tuple[str, str]]()

    async def facts(self, keys: Keys, agent: str, thread: str) -> ThreadFacts:
        """Return who asked; empty facts for a thread nobody named."""
        key = keys.thread_facts(agent, thread)
        stored = await self._conn.command("HGET", key, "facts")
        whose = keys, agent, thread
        return (await read_facts(self._sealing, whose, stored)).facts

    async def change(
        self,
        keys: Keys,
        agent: str,
        thread: str,
        changed: Callable[[ThreadFacts], ThreadFacts],
        *,
        why: Why = "begin",
    ) -> None:
        """Change who asked, so that nobody who asks at the same moment is forgotten.

        Args:
            keys: of the tenant.
            agent: the run's outermost agent.
            thread: its thread.
            changed: the facts from now on, made of those before.
            why: what they are changed for.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """
        change = partial(REMEMBER, self._conn, why=why, keep_ms=KEEP_MS)
        await self._replace((keys, agent, thread), changed, change)

    async def ask(
        self,
        keys: Keys,
        job: Job,
        message_key: str,
        change: Callable[[ThreadFacts], ThreadFacts],
    ) -> bool:
        """Keep what a person asked, once; False when it was kept before.

        Who asked and the job are one step, so a message that could not be kept may be
        delivered again, and one that was kept may too.

        Args:
            keys: of the tenant.
            job: starts the agent.
            message_key: names the message; the same again is the same message.
            change: the thread's facts from now on, made of those before.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """
        ask = partial(
            ASK,
            self._conn,
            seen=keys.message_kept(message_key),
            jobs=keys.jobs,
            job=sealed_job(self._sealing, job).model_dump_json(),
            seen_ms=_SEEN_MS,
        )
        whose = keys, job.agent, job.thread
        return await self._replace(whose, change, ask) == "kept"

    async def _replace(
        self,
        whose: Whose,
        changed: Callable[[ThreadFacts], ThreadFacts],
        script: Callable[..., Awaitable[list[Reply]]],
    ) -> str:
        """Have a script replace the facts that were read; again if they moved."""
        keys, *place = whose
        key = keys.thread_facts(*place)
        for _ in range(_ATTEMPTS):
            kept = await self._conn.command("HGET", key, "facts")
            before = cast("bytes", kept or b"")
            found = await read_facts(self._sealing, whose, before)
            facts = changed(found.facts)
            body = packed(facts.model_dump_json(exclude_defaults=True))
            # Also above those that were lost with their facts.
            number = max(found.number + 1, int(self._conn.clock.now_s() * 1000))
            after = self._sealing.sealed(
                Sealed.FACTS, (key,), number.to_bytes(_NUMBER_BYTES) + body
            )
            reply = await script(facts=key, before=before, after=after)
            if (word := text(reply[0])) != "moved":
                return word
        raise StoreUnavailable(
            "Too many people asked in this thread at once; nothing was kept. Ask again."
        )

    async def is_run_open(self, keys: Keys, agent: str, thread: str) -> bool:
        """Return whether `open_run` was called for the run that goes on now."""
        key = keys.thread_facts(agent, thread)
        return text(await self._conn.command("HGET", key, "run")) == "open"

    async def open_runs(self, keys: Keys, runs: Iterable[RunRef]) -> list[RunRef]:
        """Return those of many runs that began and have not ended."""
        asked = [*runs]
        replies = await self._conn.sequence(
            *(
                ("HGET", keys.thread_facts(run.agent, run.thread), "run")
                for run in asked
            )
        )
        return [
            run for run, reply in zip(asked, replies, strict=True) if reply == b"open"
        ]

    async def open_run(
        self, keys: Keys, agent: str, thread: str, *, has_past: bool
    ) -> None:
        """Keep a thread's facts until its run has ended; see `end_run`.

        A thread with a past of whose people nothing is known, because the facts were
        kept no longer or the store lost them, has partial facts from now on. The
        caller holds the thread's lease.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """
        key = keys.thread_facts(agent, thread)
        found = fields(await self._conn.command("HGETALL", key))
        # The past was looked at when this run began; "new" is only what somebody asked
        # since.
        if text(found.get("run")) == "open":
            return
        # What was told of a run may be kept here while its people are not.
        is_known = "facts" in found and text(found.get("run")) != "new"
        is_lost = has_past and not is_known

        def looked_at(facts: ThreadFacts) -> ThreadFacts:
            return facts.with_(is_partial=True) if is_lost else facts

        await self.change(keys, agent, thread, looked_at, why="open")

    async def end_run(self, keys: Keys, agent: str, thread: str) -> None:
        """Give a thread's facts a lifetime: its run has ended, or it was deleted."""
        key = keys.thread_facts(agent, thread)
        await END_RUN(self._conn, facts=key, keep_ms=KEEP_MS)

    async def was_asked(self, keys: Keys, message_key: str) -> bool:
        """Return whether a message was kept for an agent."""
        reply = await self._conn.command("EXISTS", keys.message_kept(message_key))
        return bool(reply)

    async def mark(self, keys: Keys, agent: str, thread: str, what: Mark) -> str:
        """Return what `announce` wrote last; "" for nothing."""
        key = keys.thread_facts(agent, thread)
        return text(await self._conn.command("HGET", key, what))

    async def announce(
        self,
        keys: Keys,
        agent: str,
        thread: str,
        *,
        what: Mark,
        mark: str,
        outbox_event: str,
        audit_event: str,
    ) -> bool:
        """Announce that a run began or ended; False when that is known.

        ``mark`` is the input that it began with, or the checkpoint where it ended. For
        reports of metrics it is what they were about; the "thread" is then the reader
        that publishes.

        Raises:
            LeaseLost: another holder has the lease now.
        """
        reply = await ANNOUNCE(
            self._conn,
            facts=keys.thread_facts(agent, thread),
            outbox=keys.outbox,
            audit=keys.audit,
            what=what,
            mark=mark,
            keep_ms=KEEP_MS,
            outbox_event=sealed_text(self._conn, keys, outbox_event),
            audit_event=sealed_text(self._conn, keys, audit_event),
        )
        return text(reply[0]) == "announced"

    def lease(
        self, keys: Keys, agent: str, thread: str
    ) -> AbstractAsyncContextManager[Lease]:
        """Hold the right to run a thread; it may end inside the block at any time.

        Raises:
            ThreadUnavailable: when another process runs this thread.
        """
        return self.leases.held(keys, keys.lease(agent, thread))


class InterruptStore:
    """The interrupts that people were told of; the caller holds the thread's lease."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def all(self, keys: Keys, job: Job) -> dict[str, int]:
        """Return until when each interrupt of a job's thread waits; 0: it has ended."""
        key = keys.questions(job.agent, job.thread)
        found = fields(await self._conn.command("HGETALL", key))

        def read(_: str, at: bytes) -> int:
            return 0 if at.decode() == _ENDED else int(at)

        return readable_fields(found, read)

    async def ask(
        self,
        keys: Keys,
        job: Job,
        interrupt_id: str,
        until_ms: int,
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
            ["HSET", key, interrupt_id, until_ms],
            ["PEXPIREAT", key, until_ms + KEEP_MS],
            _due(keys, job, until_ms),
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
