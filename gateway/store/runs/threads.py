"""Store facts about threads: requester, location in Slack, active run, interrupts.

The interrupts are those of other libraries that were announced to people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Literal, NamedTuple, cast

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.errors import NotAllowed, StoreUnavailable, TooManySpeakers
from keyturn.gateway.protocol.http_api import LeaseReply, LeaseState, LeaseVerb
from keyturn.gateway.protocol.records import Person, Record, RunRef
from keyturn.gateway.store.connection.connection import (
    Argument,
    Reply,
    fields,
    number,
    text,
)
from keyturn.gateway.store.keys import KEEP_MS, MESSAGE_LIFETIME, Keys
from keyturn.gateway.store.runs.jobs import Job, sealed_job
from keyturn.gateway.store.runs.leases import held
from keyturn.gateway.store.scripts.fences import Lease
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.encryption import packed, unpacked
from keyturn.gateway.store.sealing.event_seals import sealed_text
from keyturn.gateway.store.sealing.sealing import Repository, Sealed, Sealing, write_if

REMEMBER = Script("remember")
END_RUN = Script("end_run")
TAKE_LEASE = Script("lease")

_SEEN_MS = int(MESSAGE_LIFETIME.total_seconds() * 1000)

# As for approvals: each failed attempt means that another write succeeded.
_ATTEMPTS = 16

# The lease and its fence come from the context: `Script` reads `fences.current`.
ANNOUNCE = Script("announce", is_fenced=True)

MAX_PRINCIPALS = 100
"""Limit of people who may speak in a thread: each one is remembered."""

REACH = 1_000_000
"""How far a holder in another process may raise the fence at once. Without a limit, one
holder could exhaust the fences of all agents of the tenant."""


Mark = Literal["begun", "ended", "digest", "waiting", "corrected"]
"""Kinds of announcements, made once for each mark: see `ThreadStore.announce`."""

_ENDED = b"ended"


class ThreadFacts(Record):
    """The people who asked the agent in this thread, and the thread's place in Slack.

    ``requester`` is the latest person to ask; ``principals`` asked earlier, or outside
    of the run. ``is_partial`` means that earlier requesters are unknown, so they cannot
    be excluded from deciding.
    """

    requester: Person | None = None
    origin: Origin | None = None
    principals: tuple[Person, ...] = ()
    is_partial: bool = False

    @property
    def people(self) -> tuple[Person, ...]:
        """Return everybody who asked, the requester first."""
        return tuple(filter(None, (self.requester, *self.principals)))

    def asked_by(self, requester: Person) -> ThreadFacts:
        """Return the facts after a person asked; earlier people are kept.

        Raises:
            TooManySpeakers: when more than `MAX_PRINCIPALS` would be remembered.
        """
        return self.with_(requester=requester).joined(self.people)

    def joined(self, people: Iterable[Person]) -> ThreadFacts:
        """Return the facts with more people who may have asked for later calls.

        Raises:
            TooManySpeakers: when more than `MAX_PRINCIPALS` would be remembered.
        """
        # One entry a person, even if their display name changed.
        known = {(one.team, one.user): one for one in (*self.principals, *people)}
        # The requester counts as well: the next message makes them a principal.
        speakers = {*known, *((one.team, one.user) for one in self.people)}
        if len(speakers) > MAX_PRINCIPALS:
            # Refuse rather than forget: a forgotten speaker could approve their own
            # request.
            raise TooManySpeakers(MAX_PRINCIPALS)
        return self.with_(principals=tuple(known.values()))


Whose = tuple[Keys, str, str]
"""Keys of the tenant, agent and thread."""

_NUMBER_BYTES = 8
"""Size of the change counter before the facts; the counter exposes older copies."""


class StoredFacts(NamedTuple):
    """The facts of a thread as read from the store, and how often they changed.

    Missing facts are empty. If they were refused, the people are unknown.
    """

    facts: ThreadFacts
    number: int = 0


async def read_facts(sealing: Sealing, whose: Whose, stored: Reply) -> StoredFacts:
    """Verify and parse the stored facts of a thread; report rejected ones."""
    keys, agent, thread = whose
    key, body = keys.thread_facts(agent, thread), cast("bytes", stored or b"")
    if not body:
        # Their lifetime may have ended, so missing facts are not an older version.
        return StoredFacts(ThreadFacts())
    opened = sealing.opened(Sealed.FACTS, (key,), body)
    if opened is not None:
        number, text = int.from_bytes(opened[:_NUMBER_BYTES]), opened[_NUMBER_BYTES:]
        if not sealing.is_older(key, number):
            facts = ThreadFacts.model_validate_json(unpacked(text))
            return StoredFacts(facts, number)
        body = text
    await sealing.refuse(
        keys,
        Sealed.FACTS,
        body,
        agent=agent,
        thread=thread,
        is_older=opened is not None,
    )
    return StoredFacts(_unknown(body), sealing.newest(key))


def _unknown(body: bytes) -> ThreadFacts:
    """Return facts without a known requester, so that two people have to approve.

    People named in the rejected text are excluded from deciding.
    """
    people: tuple[Person, ...] = ()
    with suppress(ValueError):
        found = ThreadFacts.model_validate_json(unpacked(body))
        asked = () if found.requester is None else (found.requester,)
        people = (*asked, *found.principals)[:MAX_PRINCIPALS]
    return ThreadFacts(is_partial=True, principals=people)


Why = Literal["begin", "open", "aside"]
"""Reason for a change of facts.

``begin``: a person asked in the thread. ``open``: a run starts, and its past was
checked. ``aside``: an agent inside another run's tool gets the people of that run; its
thread has no run.
"""


class ThreadStore(Repository):
    """Facts and leases of threads.

    Attributes:
        at_work: agents and threads that this process is running.
    """

    def __init__(self, sealing: Sealing, *, lease_ms: int) -> None:
        super().__init__(sealing)
        self._lease_ms = lease_ms
        self.at_work = set[tuple[str, str]]()

    async def facts(self, keys: Keys, agent: str, thread: str) -> ThreadFacts:
        """Return a thread's facts; empty facts for an unknown thread."""
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
        """Change a thread's facts without losing concurrent changes.

        Args:
            keys: of the tenant.
            agent: the run's outermost agent.
            thread: its thread.
            changed: computes the new facts from the current ones.
            why: reason for the change.

        Raises:
            StoreUnavailable: when the result is unknown.
        """
        await self._replace((keys, agent, thread), changed, why)

    async def ask(
        self,
        keys: Keys,
        job: Job,
        message_key: str,
        change: Callable[[ThreadFacts], ThreadFacts],
    ) -> bool:
        """Store a person's request once; False if it was stored before.

        The facts and the job are written in one step, so a message may be delivered
        again whether or not it was stored.

        Args:
            keys: of the tenant.
            job: starts the agent.
            message_key: identifies the message.
            change: computes the thread's new facts from the current ones.

        Raises:
            StoreUnavailable: when the result is unknown.
        """
        whose, text = (keys, job.agent, job.thread), sealed_job(self._sealing, job)
        stored = text.model_dump_json()
        said = await self._replace(whose, change, "begin", stored, message_key)
        return said == "kept"

    async def _replace(
        self,
        whose: Whose,
        changed: Callable[[ThreadFacts], ThreadFacts],
        why: Why,
        job: str = "",
        message_key: str = "",
    ) -> str:
        """Replace the current facts, and queue a job; retry after a conflict."""
        keys, *place = whose
        key = keys.thread_facts(*place)
        for _ in range(_ATTEMPTS):
            kept = await self._conn.command("HGET", key, "facts")
            before = cast("bytes", kept or b"")
            found = await read_facts(self._sealing, whose, before)
            facts = changed(found.facts)
            body = packed(facts.model_dump_json(exclude_defaults=True))
            # Based on the time, so that it also exceeds a number lost with its facts.
            number = max(found.number + 1, int(self._conn.clock.now_s() * 1000))
            after = self._sealing.sealed(
                Sealed.FACTS, (key,), number.to_bytes(_NUMBER_BYTES) + body
            )
            reply = await REMEMBER(
                self._conn,
                facts=key,
                seen=keys.message_kept(message_key),
                jobs=keys.jobs,
                before=before,
                after=after,
                why=why,
                keep_ms=KEEP_MS,
                job=job,
                seen_ms=_SEEN_MS,
            )
            if (word := text(reply[0])) != "moved":
                return word
        raise StoreUnavailable(
            "Too many people asked in this thread at once; nothing was kept. Ask again."
        )

    async def is_run_open(self, keys: Keys, agent: str, thread: str) -> bool:
        """Return whether `open_run` was called for the current run."""
        key = keys.thread_facts(agent, thread)
        return text(await self._conn.command("HGET", key, "run")) == "open"

    async def state_of_run(
        self, keys: Keys, agent: str, thread: str
    ) -> tuple[bool, bool]:
        """Return whether the current run was dropped, and whether it is open."""
        is_dropped, run = await self._conn.transaction(
            ["EXISTS", keys.dropped(keys.stalled_run(agent, thread))],
            ["HGET", keys.thread_facts(agent, thread), "run"],
        )
        return bool(is_dropped), text(run) == "open"

    async def open_runs(self, keys: Keys, runs: Iterable[RunRef]) -> list[RunRef]:
        """Return the runs that began and have not ended."""
        asked = [*runs]
        replies = await self._conn.transaction(
            *(
                ("HGET", keys.thread_facts(run.agent, run.thread), "run")
                for run in asked
            )
        )
        pairs = zip(asked, replies, strict=True)
        return [run for run, reply in pairs if reply == b"open"]

    async def open_run(
        self, keys: Keys, agent: str, thread: str, *, has_past: bool
    ) -> None:
        """Keep a thread's facts until its run has ended; see `end_run`.

        If the thread has a past but its facts expired or were lost, they are marked as
        partial. The caller holds the thread's lease.

        Raises:
            StoreUnavailable: when the result is unknown.
        """
        key = keys.thread_facts(agent, thread)
        found = fields(await self._conn.command("HGETALL", key))
        # An open run was checked when it began. "new" facts cover only the latest
        # request.
        if text(found.get("run")) == "open":
            return
        # The hash may have announcements of a run without its people.
        is_known = "facts" in found and text(found.get("run")) != "new"
        is_lost = has_past and not is_known

        def looked_at(facts: ThreadFacts) -> ThreadFacts:
            return facts.with_(is_partial=True) if is_lost else facts

        await self.change(keys, agent, thread, looked_at, why="open")

    async def end_run(self, keys: Keys, agent: str, thread: str) -> None:
        """Set a lifetime for a thread's facts: its run has ended or was deleted."""
        key = keys.thread_facts(agent, thread)
        await END_RUN(self._conn, facts=key, keep_ms=KEEP_MS)

    async def was_asked(self, keys: Keys, message_key: str) -> bool:
        """Return whether a message was accepted for an agent."""
        reply = await self._conn.command("EXISTS", keys.message_kept(message_key))
        return bool(reply)

    async def mark(self, keys: Keys, agent: str, thread: str, what: Mark) -> str:
        """Return the last mark of a kind of announcement; "" if there is none."""
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
        """Announce the start or end of a run; False if it was announced before.

        ``mark`` is the run's input or its last checkpoint. For metric reports it is the
        subject of the report, and "thread" is the reader that publishes it.

        Raises:
            LeaseLost: another process has the lease now.
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
        """Hold a thread's lease; it may end inside the block at any time.

        Raises:
            ThreadUnavailable: when another process runs this thread.
        """
        return self.held_lease(keys, keys.lease(agent, thread))

    def held_lease(
        self, keys: Keys, name: str, *, ends_blocked: bool = False
    ) -> AbstractAsyncContextManager[Lease]:
        """Hold the lease of a name; see `held`."""

        async def ask(verb: LeaseVerb, token: str, above: int) -> LeaseReply:
            return await self.lease_step(keys, name, verb, token, above)

        return held(ask, ends_blocked=ends_blocked)

    async def lease_step(
        self,
        keys: Keys,
        name: str,
        verb: LeaseVerb,
        token: str,
        above: int = 0,
        *,
        reach: int = 0,
    ) -> LeaseReply:
        """Take, keep, renumber or give back a lease; see `LeaseQuestion`.

        ``reach`` limits how far ``above`` may exceed the newest fence; 0: no limit.

        Raises:
            NotAllowed: ``above`` is out of reach; nothing changed.
        """
        reply = await TAKE_LEASE(
            self._conn,
            lease=name,
            fences=keys.fences,
            verb=verb,
            token=token,
            ttl_ms=self._lease_ms,
            above=above,
            reach=reach,
        )
        state = text(reply[0])
        if state == "too_high":
            raise NotAllowed(
                f"'above' is more than {reach} above the newest fence of this gateway; "
                "run the thread in the gateway's own process once."
            )
        return LeaseReply(
            state=cast("LeaseState", state),
            fence=number(reply[1]) if state == "held" else 0,
            name=name,
            lease_s=self._lease_ms / 1000,
        )


class InterruptStore(Repository):
    """Interrupts announced to people; the caller holds the thread's lease."""

    async def all(self, keys: Keys, job: Job) -> dict[str, int]:
        """Return a thread's interrupts with their deadlines; 0 for an ended one."""
        key = keys.questions(job.agent, job.thread)
        found = fields(await self._conn.command("HGETALL", key))

        return {name: 0 if at == _ENDED else int(at) for name, at in found.items()}

    async def ask(
        self,
        keys: Keys,
        job: Job,
        interrupt_id: str,
        until_ms: int,
        event: Event,
        words: str,
    ) -> None:
        """Announce an interrupt to people, and schedule the job that ends it.

        The audit log cannot be erased, so its event lacks the text.
        """
        key = keys.questions(job.agent, job.thread)
        outbox_event = (
            event.with_(data={**event.data, "text": words}) if words else event
        )
        await write_if(
            self._conn,
            keys,
            [],
            ["HSET", key, interrupt_id, until_ms],
            ["PEXPIREAT", key, until_ms + KEEP_MS],
            _due(keys, job, until_ms),
            outbox=[outbox_event],
            audit=[event],
        )

    async def arm(self, keys: Keys, job: Job, at_ms: int) -> None:
        """Schedule the job that ends an interrupt, unless an earlier one is due."""
        await self._conn.keep(_due(keys, job, at_ms))

    async def end(self, keys: Keys, job: Job, ids: list[str], event: Event) -> None:
        """Record that interrupts have ended, and announce it."""
        key = keys.questions(job.agent, job.thread)
        marks: list[Argument] = [part for one in ids for part in (one, _ENDED)]
        await write_if(
            self._conn,
            keys,
            [],
            ["HSET", key, *marks],
            ["PEXPIRE", key, KEEP_MS],
            outbox=[event],
            audit=[event],
        )


def _due(keys: Keys, job: Job, at_ms: int) -> list[Argument]:
    return ["ZADD", keys.retry, "LT", at_ms, job.model_dump_json()]
