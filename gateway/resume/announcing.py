"""Tell the outbox what becomes of runs; a finished run is told once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from gateway.approvals.events import Event, EventName
from gateway.approvals.record import Home
from gateway.store.connection import text
from gateway.store.keys import RETENTION, Keys
from gateway.store.store import Store

MAX_WORDS = 12_000
"""Longest last words that are passed on: what one Slack message can hold."""

_KEEP_MS = int(RETENTION.total_seconds() * 1000)
_TOLD = "told"


@dataclass(frozen=True)
class Place:
    """One thread of one agent, and the shard that its jobs and events go through."""

    keys: Keys
    tenant: str
    agent: str
    thread: str

    @property
    def home(self) -> Home:
        """Return the run that is at home here."""
        return Home(agent=self.agent, thread=self.thread)


class Announcer:
    """Events about runs, addressed to where the agent was asked."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def started(self, at: Place) -> None:
        """Tell that a run began."""
        await self._put(at, await self._event(at, EventName.RUN_STARTED))

    async def failed(self, at: Place, reason: str) -> None:
        """Tell that a run was given up; ``reason`` holds nothing of the agent's."""
        event = await self._event(at, EventName.RUN_FAILED)
        await self._put(at, event.with_(reason=reason))

    async def finished(self, at: Place, checkpoint: str, words: str) -> bool:
        """Tell a thread's last words, once for this checkpoint; False when told.

        The audit log, which nobody can erase, gets the event without the words: they
        may quote arguments.

        The caller holds the thread's lease, so nobody else writes the mark between
        the look and the one step that writes the event and the mark.
        """
        key = at.keys.thread_facts(at.tenant, at.agent, at.thread)
        conn = self._store.conn
        if text(await conn.command("HGET", key, _TOLD)) == checkpoint:
            return False
        event = await self._event(at, EventName.RUN_FINISHED)
        told = event.with_(data={**event.data, "text": _bounded(words)})
        now = await self._now_ms()
        await conn.together(
            ["XADD", at.keys.outbox, "*", "e", told.model_dump_json(), "at", now],
            ["XADD", at.keys.audit, "*", "e", event.model_dump_json(), "at", now],
            ["HSET", key, _TOLD, checkpoint],
            ["PEXPIRE", key, _KEEP_MS],
        )
        return True

    async def _put(self, at: Place, event: Event) -> None:
        await self._store.outbox(at.keys, reader="").put(event)

    async def _event(self, at: Place, name: EventName) -> Event:
        facts = await self._store.threads.facts(at.keys, at.tenant, at.agent, at.thread)
        origin = facts.origin
        data = {
            "channel": origin.channel if origin else "",
            "thread_ts": origin.thread_ts if origin else "",
        }
        return Event(
            name=name,
            tenant=at.tenant,
            agent=at.agent,
            thread=at.thread,
            channel=data["channel"],
            data=data,
        )

    async def _now_ms(self) -> int:
        reply = await self._store.conn.command("TIME")
        seconds, micros = cast("tuple[bytes, bytes]", reply)
        return int(seconds) * 1000 + int(micros) // 1000


def _bounded(words: str) -> str:
    cut = len(words) - MAX_WORDS
    if cut <= 0:
        return words
    note = f"… ({cut} more characters)"
    return words[: MAX_WORDS - len(note)] + note
