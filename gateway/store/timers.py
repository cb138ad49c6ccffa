"""Reminder and escalation timers of pending approvals.

One sorted set a tenant holds them by when they are due. A timer is set in the step that
opens its approval and taken out in the step that announces it, so it fires once,
whichever process looks, and survives a restart.
"""

from __future__ import annotations

from keyturn.gateway.approvals.record import Waiting
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection import Connection, milliseconds, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.listed_members import without_junk


class Timer(Record):
    """One timer of one approval."""

    approval: str
    kind: TimerKind

    def __str__(self) -> str:
        """Return the name under which the store keeps it."""
        return f"{self.approval} {self.kind}"


def rows(waiting: Waiting) -> list[tuple[str, int]]:
    """Return the timers of a new approval: kind, and milliseconds from its opening."""
    times = (
        (TimerKind.REMIND, waiting.remind_at_ms),
        (TimerKind.ESCALATE, waiting.escalate_at_ms),
    )
    return [(kind.value, after_ms) for kind, after_ms in times if after_ms]


def _timer(member: bytes) -> Timer:
    """Read the name of a timer; raises ValueError for anything else."""
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
        # Junk is removed, or it would be due, and come first, for ever.
        return await without_junk(self._conn, keys.timers, reply, _timer)

    async def approvals_with(self, keys: Keys, kind: TimerKind) -> list[str]:
        """Return ids of a tenant's approvals for which a timer of a kind is set."""
        reply = await self._conn.command("ZRANGE", keys.timers, 0, -1)
        timers = await without_junk(self._conn, keys.timers, reply, _timer)
        return [timer.approval for timer in timers if timer.kind is kind]

    async def is_due(self, keys: Keys, timer: Timer) -> bool:
        """Return False when another replica fired it, or it was set to a later time."""
        at, time = await self._conn.transaction(
            ["ZSCORE", keys.timers, str(timer)], ["TIME"]
        )
        return at is not None and float(str(text(at))) <= milliseconds(time)

    async def drop(self, keys: Keys, timer: Timer) -> None:
        """Forget a timer whose approval is kept no longer."""
        await self._conn.command("ZREM", keys.timers, str(timer))
