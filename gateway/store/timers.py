"""Reminder and escalation timers of pending approvals.

One sorted set a shard holds them by when they are due. A timer is set in the step that
opens its approval and taken out in the step that announces it, so it fires once,
whichever process looks, and survives a restart.
"""

from __future__ import annotations

from twokey.gateway.approvals.record import Waiting
from twokey.gateway.approvals.timing import TimerKind
from twokey.gateway.protocol.records import Record
from twokey.gateway.store.connection import milliseconds, text
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.listed_members import ListedMembers


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
    """Timers of all shards."""

    def __init__(self, members: ListedMembers) -> None:
        self._conn = members.conn
        self._members = members

    async def due(self, keys: Keys, limit: int, *, skip: int = 0) -> list[Timer]:
        """Return timers that are due by the store's clock, earliest first.

        ``skip`` leaves out the first ones, which the caller has to leave alone.
        """
        now_ms = await self._conn.now_ms(keys.timers)
        reply = await self._conn.command(
            "ZRANGEBYSCORE", keys.timers, 0, now_ms, "LIMIT", skip, limit
        )
        # Junk is removed, or it would be due, and come first, for ever.
        return await self._members.read(
            keys, keys.timers, reply, _timer, taken_out="ZREM"
        )

    async def approvals_with(self, keys: Keys, kind: TimerKind) -> list[str]:
        """Return ids of a shard's approvals for which a timer of a kind is set."""
        reply = await self._conn.command("ZRANGE", keys.timers, 0, -1)
        timers = await self._members.read(
            keys, keys.timers, reply, _timer, taken_out="ZREM"
        )
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
