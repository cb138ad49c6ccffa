"""Keep the timers of approvals that wait: when to remind, when to call others.

One sorted set a shard holds them by when they are due. A timer is set in the step that
opens its approval and taken out in the step that announces it, so it rings once,
whoever looks, and is not forgotten by a restart.
"""

from __future__ import annotations

import json
import logging
from enum import StrEnum
from typing import Literal, cast

from gateway.approvals import timing
from gateway.approvals.events import Event
from gateway.approvals.record import Approval, Record, Waiting
from gateway.approvals.timing import Retimed
from gateway.store import scripts
from gateway.store.connection import Connection, text
from gateway.store.keys import RETENTION, Keys, shard_of_approval

logger = logging.getLogger(__name__)

_KEEP_MS = int(RETENTION.total_seconds() * 1000)

Retiming = Literal["done", "gone", "expired", "moved"]


class TimerKind(StrEnum):
    """What happens when a timer rings."""

    REMIND = "remind"
    ESCALATE = "escalate"
    RELEASE = "release"
    DOUBT = "doubt"


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
    """Read the name of a timer; raises ValueError for what is none."""
    approval, _, kind = member.decode("utf-8").rpartition(" ")
    return Timer(approval=approval, kind=TimerKind(kind))


class TimerStore:
    """Timers of all shards."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def due(self, keys: Keys, limit: int, *, skip: int = 0) -> list[Timer]:
        """Return timers that are due by the store's clock, earliest first.

        ``skip`` leaves out the first ones, which the caller has to leave alone.
        """
        now = cast("tuple[bytes, bytes]", await self._conn.command("TIME"))
        now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
        reply = await self._conn.command(
            "ZRANGEBYSCORE", keys.timers, 0, now_ms, "LIMIT", skip, limit
        )
        found: list[Timer] = []
        for member in cast("list[bytes]", reply or []):
            try:
                found.append(_timer(member))
            except ValueError:
                logger.error("timer.unreadable shard=%s", keys.shard)  # noqa: TRY400 - it says all
                await self._conn.command("ZREM", keys.timers, member)
        return found

    async def ring(self, keys: Keys, timer: Timer, event: Event) -> bool:
        """Announce what a timer is about; False when it rang before or is too late."""
        reply = await scripts.RING(
            self._conn,
            head=keys.head(timer.approval),
            blobs=keys.blobs(timer.approval),
            timers=keys.timers,
            outbox=keys.outbox,
            audit=keys.audit,
            id=timer.approval,
            kind=timer.kind.value,
            event=event.model_dump_json(),
        )
        return text(reply[0]) == "rung"

    async def retime(self, before: Approval, change: Retimed) -> Retiming:
        """Write another time, or who is on it, if nothing moved since ``before``."""
        shard = shard_of_approval(before.id)
        if shard is None:
            return "gone"
        keys, after = Keys(shard), change.approval
        is_taken = after.taken is not None and after.taken != before.taken
        reply = await scripts.RETIME(
            self._conn,
            head=keys.head(before.id),
            blobs=keys.blobs(before.id),
            expiry=keys.expiry,
            timers=keys.timers,
            outbox=keys.outbox,
            audit=keys.audit,
            waiting=keys.waiting(before.tenant, before.agent),
            id=before.id,
            rev=before.rev,
            expires=after.expires_at_ms,
            taken=after.taken.model_dump_json() if after.taken and is_taken else "",
            rings=json.dumps(timing.timers(before, after)),
            event=change.event.model_dump_json(),
            keep_ms=_KEEP_MS,
        )
        return cast("Retiming", text(reply[0]))

    async def drop(self, keys: Keys, timer: Timer) -> None:
        """Forget a timer whose approval is kept no longer."""
        await self._conn.command("ZREM", keys.timers, str(timer))
