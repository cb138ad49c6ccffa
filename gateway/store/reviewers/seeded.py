"""Store the checks of reviewers: the seeded defect of a tenant, and its spot checks.

A seeded defect is not an approval. Its key is not read by any claim or decision, so a
click on its card can never run anything.
"""

from __future__ import annotations

from datetime import timedelta

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.quality_checks import Seeded, SeededCard
from keyturn.gateway.store.connection.connection import fields, number, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.conditional_write import write_if
from keyturn.gateway.store.sealing.sealing import Repository

_KEEP_MS = int(timedelta(days=400).total_seconds() * 1000)
_DUE, _CARD, _PLACE, _ANSWER = "due", "card", "place", "answer"

_DAY_MS = 86_400_000


class SeededStore(Repository):
    """Seeded defects of all tenants; each tenant has at most one at a time."""

    async def read(self, keys: Keys) -> Seeded:
        """Read the stored defect."""
        rows = fields(await self._conn.command("HGETALL", keys.seeded))
        found = {name: text(body) for name, body in rows.items()}
        channel, _, ts = found.get(_PLACE, "").partition(" ")
        body = found.get(_CARD)
        return Seeded(
            due_ms=int(found.get(_DUE, "0")),
            card=SeededCard.model_validate_json(body) if body else None,
            channel=channel,
            ts=ts,
            answer=found.get(_ANSWER, ""),
        )

    async def plan(self, keys: Keys, due_ms: int) -> None:
        """Set the time of the next defect, unless it is set."""
        await self._note(keys, _DUE, str(due_ms))

    async def show(self, keys: Keys, card: SeededCard) -> None:
        """Save a card before it is posted."""
        await self._note(keys, _CARD, card.model_dump_json())

    async def posted(self, keys: Keys, channel: str, ts: str, event: Event) -> None:
        """Save the card's place in Slack, and count it."""
        await self._note(keys, _PLACE, f"{channel} {ts}", event)

    async def answer(self, keys: Keys, answer: str, event: Event) -> bool:
        """Save the outcome; False if it had ended before."""
        return await self._note(keys, _ANSWER, answer, event)

    async def end(self, keys: Keys) -> None:
        """Delete it; the next one gets a new time."""
        await self._conn.command("DEL", keys.seeded)

    async def _note(
        self, keys: Keys, field: str, body: str, event: Event | None = None
    ) -> bool:
        """Set a field once; False if it was set before."""
        key = keys.seeded
        return await write_if(
            self._conn,
            keys,
            [(["HGET", key, field], "")],
            ["HSET", key, field, body],
            ["PEXPIRE", key, _KEEP_MS],
            audit=[event] if event else [],
        )


class SpotCheckCounter(Repository):
    """Number of calls put to each tenant's reviewers, by day (UTC)."""

    async def take(self, keys: Keys, most: int) -> bool:
        """Count one more call for today; False if the limit is reached.

        If the process dies before the call is put to reviewers, the count stays: they
        get fewer calls, never more.
        """
        now_ms = await self._conn.now_ms(keys.outbox)
        key = keys.spot_checks(now_ms // _DAY_MS)
        count, _ = await self._conn.transaction(
            ["INCR", key], ["PEXPIRE", key, 2 * _DAY_MS]
        )
        return number(count) <= most
