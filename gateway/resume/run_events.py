"""Write run events to the outbox; each finished run is announced once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

MAX_CHARS = 12_000
"""Longest final message that is passed on: what one Slack message can hold."""


@dataclass(frozen=True)
class ThreadRef:
    """One thread of one agent, and the shard that its jobs and events go through."""

    keys: Keys
    tenant: str
    agent: str
    thread: str

    @classmethod
    def of(cls, store: Store, tenant: str, run: RunRef) -> Self:
        """Return the thread of a run of a tenant."""
        keys = store.keys_of_agent(tenant, run.agent)
        return cls(keys, tenant, run.agent, run.thread)

    @property
    def run_ref(self) -> RunRef:
        """Return the run of this thread."""
        return RunRef(agent=self.agent, thread=self.thread)

    @property
    def run(self) -> str:
        """Return the id of that run, as it is listed when it fails."""
        return self.keys.stalled_run(self.tenant, self.agent, self.thread)


class RunEvents:
    """Events about runs, addressed to where the agent was asked."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def started(self, at: ThreadRef, key: str) -> None:
        """Announce that a run began, once for this input.

        Raises:
            LeaseLost: another process runs the thread now; nothing was told.
        """
        body = (await self.event(at, EventName.RUN_STARTED)).model_dump_json()
        await self._store.threads.announce(
            at.keys, at.tenant, at.agent, at.thread,
            what="begun", mark=key, outbox_event=body, audit_event=body,
        )  # fmt: skip

    async def finished(self, at: ThreadRef, checkpoint: str, words: str) -> bool:
        """Announce a run's final message, once for this checkpoint; False when it was.

        The audit log, which nobody can erase, gets the event without the message: it
        may quote arguments.

        Raises:
            LeaseLost: another process runs the thread now; nothing was told.
        """
        event = await self.event(at, EventName.RUN_FINISHED)
        outbox_event = event.with_(data={**event.data, "text": _bounded(words)})
        return await self._store.threads.announce(
            at.keys,
            at.tenant,
            at.agent,
            at.thread,
            what="ended",
            mark=checkpoint,
            outbox_event=outbox_event.model_dump_json(),
            audit_event=event.model_dump_json(),
        )

    async def event(self, at: ThreadRef, name: EventName) -> Event:
        """Return an event about a run, addressed to where the agent was asked."""
        facts = await self._store.threads.facts(at.keys, at.tenant, at.agent, at.thread)
        origin = facts.origin
        channel, thread_ts = (origin.channel, origin.thread_ts) if origin else ("", "")
        return Event(
            name=name,
            tenant=at.tenant,
            agent=at.agent,
            thread=at.thread,
            channel=channel,
            data={"channel": channel, "thread_ts": thread_ts},
        )


def _bounded(words: str) -> str:
    cut = len(words) - MAX_CHARS
    if cut <= 0:
        return words
    # Inside the bound: Slack counts the note, too.
    note = f"… ({cut} more characters)"
    return words[: MAX_CHARS - len(note)] + note
