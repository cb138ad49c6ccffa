"""Indexes of a tenant's approvals: of runs, standing ones, and those with timers.

The index of standing approvals only lists candidates. A listed approval that has ended
costs one read; an unlisted one covers no calls.

A timer is set in the step that opens its approval and removed in the step that
announces it. It fires once, whichever process checks it, and survives a restart. One
sorted set of a tenant orders the timers by due time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from keyturn.gateway.approvals.record import Waiting
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.protocol.records import Record, RunRef
from keyturn.gateway.store.connection.connection import (
    Argument,
    Reply,
    milliseconds,
    number,
    text,
)
from keyturn.gateway.store.connection.listed_members import due_now, readable
from keyturn.gateway.store.keys import LISTED_BYTES, Keys
from keyturn.gateway.store.records.codec import CHECKED, CHECKED_SEAL, RecordSeals
from keyturn.gateway.store.sealing.sealing import Repository, write_if


class StandingStore(Repository):
    """Standing approvals of all tenants."""

    async def add(self, keys: Keys, approval: str, *, until_ms: int) -> None:
        """List a standing approval, before it is opened."""
        await self._conn.command("ZADD", keys.standing, until_ms, approval)

    async def listed(self, keys: Keys) -> list[str]:
        """Return the ids of those that may be in force, first end first."""
        found = await self._conn.command("ZRANGE", keys.standing, 0, -1)
        return readable(found, text)

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
        head = keys.head(approval)
        seal = RecordSeals(self._conn).of_moment(approval, CHECKED, str(asked_ms))
        while True:
            state, checked = cast(
                "list[bytes | None]",
                await self._conn.command("HMGET", head, "0:s", CHECKED),
            )
            if state != b"authorized":
                return False
            # The time never goes back: of two bots, the later request counts.
            if number(checked) >= asked_ms:
                return True
            # The revision stays, as for a heartbeat: the content does not change.
            seen = [("0:s", state), (CHECKED, checked or b"")]
            checks = [(["HGET", head, name], value) for name, value in seen]
            change: list[Argument] = [
                "HSET",
                head,
                CHECKED,
                asked_ms,
                CHECKED_SEAL,
                seal,
            ]
            if await write_if(self._conn, keys, checks, change):
                return True


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


class TimerStore(Repository):
    """Timers of all tenants."""

    async def due(self, keys: Keys, limit: int) -> list[Timer]:
        """Return timers that are due by the store's clock, earliest first."""
        return await due_now(self._conn, keys.timers, limit, _timer)

    async def approvals_with(self, keys: Keys, kind: TimerKind) -> list[str]:
        """Return ids of a tenant's approvals that have a timer of a kind."""
        reply = await self._conn.command("ZRANGE", keys.timers, 0, -1)
        timers = readable(reply, _timer)
        return [timer.approval for timer in timers if timer.kind is kind]

    async def is_due(self, keys: Keys, timer: Timer) -> bool:
        """Return False if another replica fired the timer or it was postponed."""
        at, time = await self._conn.transaction(
            ["ZSCORE", keys.timers, str(timer)], ["TIME"]
        )
        return at is not None and float(str(text(at))) <= milliseconds(time)

    async def put(self, keys: Keys, timer: Timer, at_ms: int) -> None:
        """Set a timer, or move it to another time."""
        await self._conn.command("ZADD", keys.timers, at_ms, str(timer))

    async def drop(self, keys: Keys, timer: Timer) -> None:
        """Remove a timer whose approval is gone."""
        await self._conn.command("ZREM", keys.timers, str(timer))


@dataclass(frozen=True)
class Listed:
    """An approval in its run's list: its id, and its agent's namespace."""

    id: str
    ns: str


class RunLists(Repository):
    """The approvals of each run.

    Open approvals have a separate list, so that a submission costs the same in a new
    run and in a run with a hundred thousand earlier approvals.
    """

    async def of_run(
        self, keys: Keys, run_ref: RunRef, *, newest: int = 0
    ) -> list[Listed]:
        """Return a run's approvals with those of nested agents, oldest first.

        ``newest`` limits the result to the latest ones; 0 for all.
        """
        commands: list[list[Argument]] = [
            ["ZRANGE", name, -newest, -1, "WITHSCORES"]
            for name in (keys.run(run_ref), keys.open_of(run_ref))
        ]
        # One MULTI: an approval that ends moves between the lists.
        each = await self._conn.transaction(*commands)
        found = [cast("list[bytes]", one) for one in each]
        rows = [row for one in found for row in zip(one[1::2], one[::2], strict=True)]
        rows.sort(key=lambda row: float(row[0]))
        return listed(keys, [member for _, member in rows[-newest:]])

    async def open_of_run(self, keys: Keys, run_ref: RunRef) -> list[Listed]:
        """Return a run's approvals with an open item, oldest first."""
        return await self._listed(keys, keys.open_of(run_ref))

    async def answered_of_run(self, keys: Keys, run_ref: RunRef) -> list[Listed]:
        """Return a run's latest approvals with an answer, oldest first."""
        return await self._listed(keys, keys.answered(run_ref))

    async def with_short_id(self, keys: Keys, short: str) -> list[str]:
        """Return the ids of approvals and collected cards with this short id."""
        found = cast("bytes", await self._conn.command("GET", keys.short(short)) or b"")
        members = {
            found[n : n + LISTED_BYTES] for n in range(0, len(found), LISTED_BYTES)
        }
        return sorted(readable([*members], keys.unlisted))

    async def _listed(self, keys: Keys, name: str) -> list[Listed]:
        return listed(keys, await self._conn.command("ZRANGE", name, 0, -1))


def listed(keys: Keys, members: Reply) -> list[Listed]:
    """Parse the members of a run's lists; malformed ones are skipped."""

    def read(member: bytes) -> Listed:
        approval, ns = member[:LISTED_BYTES], member[LISTED_BYTES:]
        return Listed(keys.unlisted(approval), ns.decode())

    return readable(members, read)
