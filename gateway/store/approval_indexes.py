"""Indexes of a tenant's approvals: pending, standing, and with timers.

Each agent's pending items are in a separate sorted set, which every script that moves
an item updates. The list of agents with pending items is kept here, so a tenant's
pending items are found without searching all of its approvals.

The index of standing approvals only lists candidates. A listed approval that has ended
costs one read; an unlisted one covers no calls.

A timer is set in the step that opens its approval and removed in the step that
announces it. It fires once, whichever process checks it, and survives a restart. One
sorted set of a tenant orders the timers by due time.
"""

from __future__ import annotations

from contextlib import suppress

from keyturn.gateway.approvals.record import Waiting
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection import Connection, milliseconds, text
from keyturn.gateway.store.keys import LISTED_BYTES, Keys
from keyturn.gateway.store.listed_members import Due, pages_by_score, without_junk
from keyturn.gateway.store.record_seals import CHECKED, RecordSeals
from keyturn.gateway.store.script import Script

CONFIRM = Script("confirm")


class PendingIndex:
    """The pending items of all tenants."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def add(self, keys: Keys, *agents: str) -> None:
        """List agents before they open approvals, so that none is missed."""
        if agents:
            await self._conn.command("SADD", keys.agents, *agents)

    async def soonest(self, keys: Keys, limit: int) -> list[str]:
        """Return up to ``limit`` approvals with a pending item, earliest due first."""
        key = keys.agents
        agents = await self._conn.command("SMEMBERS", key)
        listed = await without_junk(self._conn, key, agents, text, taken_out="SREM")
        due: dict[str, float] = {}
        for agent in listed:
            due |= await self._of_agent(keys, keys.waiting(agent), limit)
        # The id breaks ties, so that the order is stable.
        return sorted(due, key=lambda one: (due[one], one))[:limit]

    async def _of_agent(self, keys: Keys, name: str, limit: int) -> dict[str, float]:
        """Return an agent's approvals with the due time of their first item."""

        def approval(one: Due) -> str:
            # The member of an item is its approval's member plus its index.
            if not one.member[LISTED_BYTES:].isdigit():
                raise ValueError("no item")
            return keys.unlisted(one.member[:LISTED_BYTES])

        found: dict[str, float] = {}
        async for page in pages_by_score(self._conn, name, size=limit):
            for one in page:
                with suppress(ValueError):
                    found.setdefault(approval(one), float(one.at))
            if len(found) >= limit:
                break
        return found


class StandingStore:
    """Standing approvals of all tenants."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._seals = RecordSeals(conn)

    async def add(self, keys: Keys, approval: str, *, until_ms: int) -> None:
        """List a standing approval, before it is opened."""
        await self._conn.command("ZADD", keys.standing, until_ms, approval)

    async def listed(self, keys: Keys) -> list[str]:
        """Return the ids of those that may be in force, first end first."""
        key = keys.standing
        found = await self._conn.command("ZRANGE", key, 0, -1)
        return await without_junk(self._conn, key, found, text)

    async def drop(self, keys: Keys, approval: str) -> None:
        """Remove an ended approval from the list."""
        await self._conn.command("ZREM", keys.standing, approval)

    async def drop_overdue(self, keys: Keys) -> None:
        """Remove all approvals past their end from the list, in any state."""
        key = keys.standing
        now_ms = await self._conn.now_ms(key)
        await self._conn.command("ZREMRANGEBYSCORE", key, "-inf", now_ms)

    async def confirm(self, keys: Keys, approval: str, *, asked_ms: int) -> bool:
        """Record when Slack confirmed the givers' roles; False if it has ended.

        ``asked_ms`` is the store's time before the request to Slack.
        """
        seal = self._seals.of_moment(approval, CHECKED, str(asked_ms))
        reply = await CONFIRM(
            self._conn, head=keys.head(approval), asked_ms=asked_ms, seal=seal
        )
        return text(reply[0]) == "confirmed"


class Timer(Record):
    """One timer of one approval."""

    approval: str
    kind: TimerKind

    def __str__(self) -> str:
        """Return its name in the store."""
        return f"{self.approval} {self.kind}"


def timer_rows(waiting: Waiting) -> list[tuple[str, int]]:
    """Return a new approval's timers: kind, and milliseconds after its creation."""
    times = (
        (TimerKind.REMIND, waiting.remind_at_ms),
        (TimerKind.ESCALATE, waiting.escalate_at_ms),
    )
    return [(kind.value, after_ms) for kind, after_ms in times if after_ms]


def _timer(member: bytes) -> Timer:
    """Parse a timer's name; raises ValueError for anything else."""
    approval, _, kind = member.decode("utf-8").rpartition(" ")
    return Timer(approval=approval, kind=TimerKind(kind))


class TimerStore:
    """Timers of all tenants."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def due(self, keys: Keys, limit: int) -> list[Timer]:
        """Return timers that are due by the store's clock, earliest first."""
        now_ms = await self._conn.now_ms(keys.timers)
        reply = await self._conn.command(
            "ZRANGEBYSCORE", keys.timers, 0, now_ms, "LIMIT", 0, limit
        )
        # Remove junk; otherwise it would always be due, and come first.
        return await without_junk(self._conn, keys.timers, reply, _timer)

    async def approvals_with(self, keys: Keys, kind: TimerKind) -> list[str]:
        """Return ids of a tenant's approvals that have a timer of a kind."""
        reply = await self._conn.command("ZRANGE", keys.timers, 0, -1)
        timers = await without_junk(self._conn, keys.timers, reply, _timer)
        return [timer.approval for timer in timers if timer.kind is kind]

    async def is_due(self, keys: Keys, timer: Timer) -> bool:
        """Return False if another replica fired the timer or it was postponed."""
        at, time = await self._conn.transaction(
            ["ZSCORE", keys.timers, str(timer)], ["TIME"]
        )
        return at is not None and float(str(text(at))) <= milliseconds(time)

    async def drop(self, keys: Keys, timer: Timer) -> None:
        """Remove a timer whose approval is gone."""
        await self._conn.command("ZREM", keys.timers, str(timer))
