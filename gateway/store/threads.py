"""Keep what belongs to a thread: who asked, where, and who runs it now."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from gateway.approvals.record import Origin, Person, Record
from gateway.errors import StoreUnavailable, ThreadUnavailable, TooManySpeakers
from gateway.store import scripts
from gateway.store.connection import Connection, text
from gateway.store.jobs import Job
from gateway.store.keys import LEASE, MESSAGE_LIFETIME, RETENTION, Keys

LEASE_MS = int(LEASE.total_seconds() * 1000)
_KEEP_MS = int(RETENTION.total_seconds() * 1000)
_SEEN_MS = int(MESSAGE_LIFETIME.total_seconds() * 1000)
_ATTEMPTS = 16

MAX_PRINCIPALS = 100
"""How many people may speak in a thread: each is remembered."""


class ThreadFacts(Record):
    """Who asked the agent in this thread, and where its words belong.

    ``requester`` asked last; ``principals`` asked before, or outside of the run.
    """

    requester: Person | None = None
    origin: Origin | None = None
    principals: tuple[Person, ...] = ()

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
        if self.requester is not None:
            speakers.add((self.requester.team, self.requester.user))
        if len(speakers) > MAX_PRINCIPALS:
            raise TooManySpeakers(MAX_PRINCIPALS)
        return self.with_(principals=tuple(known.values()))


def _facts(body: str) -> ThreadFacts:
    return ThreadFacts.model_validate_json(body) if body else ThreadFacts()


class ThreadStore:
    """Facts and leases of threads."""

    def __init__(self, conn: Connection, *, lease_ms: int = LEASE_MS) -> None:
        self._conn = conn
        self._lease_ms = lease_ms

    async def remember(
        self, keys: Keys, tenant: str, agent: str, thread: str, facts: ThreadFacts
    ) -> None:
        """Write who asked; the last one who asked counts."""
        key = keys.thread_facts(tenant, agent, thread)
        await self._conn.together(
            ["HSET", key, "facts", facts.model_dump_json()],
            ["PEXPIRE", key, _KEEP_MS],
        )

    async def facts(
        self, keys: Keys, tenant: str, agent: str, thread: str
    ) -> ThreadFacts:
        """Return who asked; empty facts for a thread nobody named."""
        key = keys.thread_facts(tenant, agent, thread)
        return _facts(text(await self._conn.command("HGET", key, "facts")))

    async def change(
        self,
        keys: Keys,
        tenant: str,
        agent: str,
        thread: str,
        changed: Callable[[ThreadFacts], ThreadFacts],
    ) -> None:
        """Change who asked, so that nobody who asks at the same moment is forgotten.

        Args:
            keys: of the tenant's shard.
            tenant: whose thread it is.
            agent: the run's outermost agent.
            thread: its thread.
            changed: the facts from now on, made of those before.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """
        key = keys.thread_facts(tenant, agent, thread)
        for _ in range(_ATTEMPTS):
            before = text(await self._conn.command("HGET", key, "facts"))
            after = changed(_facts(before)).model_dump_json()
            reply = await scripts.remember(
                self._conn, facts=key, before=before, after=after, keep_ms=_KEEP_MS
            )
            if text(reply[0]) == "kept":
                return
        raise StoreUnavailable(
            "Too many people asked in this thread at once; nothing was kept. Ask again."
        )

    async def ask(
        self,
        keys: Keys,
        job: Job,
        once: str,
        asked: Callable[[ThreadFacts], ThreadFacts],
    ) -> bool:
        """Keep what a person asked, once; False when it was kept before.

        Who asked and the job are one step, so a message that could not be kept may be
        delivered again, and one that was kept may too.

        Args:
            keys: of the tenant's shard.
            job: starts the agent.
            once: names the message; the same again is the same message.
            asked: the thread's facts from now on, made of those before.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """
        facts = keys.thread_facts(job.tenant, job.agent, job.thread)
        for _ in range(_ATTEMPTS):
            before = text(await self._conn.command("HGET", facts, "facts"))
            reply = await scripts.ask(
                self._conn,
                seen=keys.asked_once(job.tenant, once),
                facts=facts,
                jobs=keys.jobs,
                before=before,
                after=asked(_facts(before)).model_dump_json(),
                job=job.model_dump_json(),
                keep_ms=_KEEP_MS,
                seen_ms=_SEEN_MS,
            )
            word = text(reply[0])
            if word != "moved":
                return word == "kept"
        raise StoreUnavailable(
            "Too many people asked in this thread at once; nothing was kept. Ask again."
        )

    async def was_asked(self, keys: Keys, tenant: str, once: str) -> bool:
        """Say whether a message was kept for an agent."""
        reply = await self._conn.command("EXISTS", keys.asked_once(tenant, once))
        return bool(reply)

    @asynccontextmanager
    async def lease(
        self, keys: Keys, tenant: str, agent: str, thread: str
    ) -> AsyncGenerator[asyncio.Event, None]:
        """Hold the right to run a thread; the event is set when it was lost.

        Raises:
            ThreadUnavailable: when another process runs this thread.
        """
        key, token = keys.lease(tenant, agent, thread), secrets.token_hex(16)
        await self._take(key, token)
        lost = asyncio.Event()
        beat = asyncio.create_task(self._keep(key, token, lost))
        try:
            yield lost
        finally:
            beat.cancel()
            with suppress(asyncio.CancelledError):
                await beat
            with suppress(StoreUnavailable):
                await scripts.lease(
                    self._conn, lease=key, verb="free", token=token, ttl_ms=0
                )

    async def _take(self, key: str, token: str) -> None:
        reply = await scripts.lease(
            self._conn, lease=key, verb="take", token=token, ttl_ms=self._lease_ms
        )
        if text(reply[0]) != "held":
            raise ThreadUnavailable("Another process runs this thread right now.")

    async def _keep(self, key: str, token: str, lost: asyncio.Event) -> None:
        while not lost.is_set():
            await asyncio.sleep(self._lease_ms / 3000)
            with suppress(StoreUnavailable):
                reply = await scripts.lease(
                    self._conn,
                    lease=key,
                    verb="keep",
                    token=token,
                    ttl_ms=self._lease_ms,
                )
                if text(reply[0]) != "held":
                    lost.set()
