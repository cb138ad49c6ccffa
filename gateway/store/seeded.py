"""Store the checks of reviewers: the seeded defect of a tenant, and its spot checks.

A seeded defect is no approval: it has a key of its own, which no claim and no decision
reads, so nothing can run it, whatever is clicked.
"""

from __future__ import annotations

from datetime import timedelta

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.seeded import Seeded, SeededCard
from keyturn.gateway.store.audit_seals import sealed_text
from keyturn.gateway.store.connection import Connection, fields, number, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.script import Script

SEEDED = Script("seeded")

_KEEP_MS = int(timedelta(days=400).total_seconds() * 1000)
_DUE, _CARD, _PLACE, _ANSWER = "due", "card", "place", "answer"

_DAY_MS = 86_400_000


class SeededStore:
    """The seeded defects of all tenants, one at a time of each."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def read(self, keys: Keys) -> Seeded:
        """Return what is kept; what cannot be read is dropped."""
        rows = fields(await self._conn.command("HGETALL", keys.seeded))
        found = {name: text(body) for name, body in rows.items()}
        channel, _, ts = found.get(_PLACE, "").partition(" ")
        try:
            body = found.get(_CARD)
            card = SeededCard.model_validate_json(body) if body else None
            due_ms = int(found.get(_DUE, "0"))
        except ValueError:
            await self._conn.command("DEL", keys.seeded)
            return Seeded()
        return Seeded(
            due_ms=due_ms,
            card=card,
            channel=channel,
            ts=ts,
            answer=found.get(_ANSWER, ""),
        )

    async def plan(self, keys: Keys, due_ms: int) -> None:
        """Note when the next one is shown, if that is not known."""
        await self._note(keys, _DUE, str(due_ms))

    async def show(self, keys: Keys, card: SeededCard) -> None:
        """Note a card that is about to be posted."""
        await self._note(keys, _CARD, card.model_dump_json())

    async def posted(self, keys: Keys, channel: str, ts: str, event: Event) -> None:
        """Note where its card stands, and count it."""
        await self._note(keys, _PLACE, f"{channel} {ts}", event)

    async def answer(self, keys: Keys, answer: str, event: Event) -> bool:
        """Note how it ended; False when it had ended before."""
        return await self._note(keys, _ANSWER, answer, event)

    async def end(self, keys: Keys) -> None:
        """Forget it; the next one gets a new time."""
        await self._conn.command("DEL", keys.seeded)

    async def _note(
        self, keys: Keys, field: str, body: str, event: Event | None = None
    ) -> bool:
        reply = await SEEDED(
            self._conn,
            seeded=keys.seeded,
            audit=keys.audit,
            field=field,
            body=body,
            event=sealed_text(self._conn, keys, event.model_dump_json())
            if event
            else "",
            keep_ms=_KEEP_MS,
        )
        return text(reply[0]) == "done"


class SpotCheckCounter:
    """How many calls each tenant's people were asked about, by day (UTC)."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def take(self, keys: Keys, most: int) -> bool:
        """Return whether one more may be asked today, and count it.

        What is counted and then not asked, because the process ends in between, is
        lost: people are asked about fewer calls, never about more.
        """
        now_ms = await self._conn.now_ms(keys.outbox)
        key = keys.spot_checks(now_ms // _DAY_MS)
        count, _ = await self._conn.transaction(
            ["INCR", key], ["PEXPIRE", key, 2 * _DAY_MS]
        )
        return number(count) <= most
