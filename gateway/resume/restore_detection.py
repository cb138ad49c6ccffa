"""Detect that the store or the checkpoint database was lost or restored.

Both keep a restore counter, which rises while anything happens. It is raised in the
store first, so after a crash in between the store is one ahead. Behind the checkpoints
it is only when it lost what was written to it.

Each store has counters of its own in the checkpoints, because several may share them; a
copy of a store has the same id. An empty store is not behind: it says nothing untrue.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointMetadata,
    empty_checkpoint,
)

from twokey.gateway.store.keys import Keys
from twokey.gateway.store.restore_counters import RestoreCounters
from twokey.gateway.store.store import Store

THREAD = "twokey:restore-counter:"
"""Prefix of the thread under which checkpoints keep their counter for one store."""
CHECKPOINT = "00000000-0000-6000-8000-000000000000"
"""The one checkpoint of it, written over each time."""
ID_KEY, NUMBER_KEY = "twokey_checkpoints", "twokey_restore_counter"

ALIVE_MS = 600_000
"""How long after their last write checkpoints may still belong to a gateway that only
restarts: what waits for threads that ours do not have is left alone so long."""
# Far below ALIVE_MS: a gateway with nothing to do must not count as gone.
IDLE_MS = 40_000
"""How soon the counters rise again while nothing happens."""
_SLACK = 16
"""How far the store may be ahead: several processes raise the counter at once."""


class Consistency(StrEnum):
    """Whether the store or the checkpoints are older than the other."""

    SAME = "same"
    STORE_IS_OLDER = "store_is_older"
    CHECKPOINTS_ARE_OLDER = "checkpoints_are_older"


class RestoreDetector:
    """The counters of one store and one set of checkpoints.

    Args:
        store: the gateway's store.
        saver: the checkpoints.
        tenant: whose records they are.
        part: of the tenant, which may be lost apart from the others; None is its own
            shard.
    """

    def __init__(
        self,
        store: Store,
        saver: BaseCheckpointSaver[Any],
        *,
        tenant: str = "default",
        part: Keys | None = None,
    ) -> None:
        self._counters = store.restore_counters
        self._saver = saver
        self._keys = part or store.keys_of_tenant(tenant)
        self._tenant = tenant
        self._store = ""
        self._id = ""
        self._last = 0
        self._changes = -1
        self._advanced_ms = 0

    async def compare(self) -> Consistency:
        """Return which of the two is older, if any; nothing is written."""
        store = (await self._known()).store
        if self._store and store != self._store:
            return Consistency.STORE_IS_OLDER  # it was emptied under this process
        checkpoints, written = await self._read(store)
        # The checkpoints first: what another process writes meanwhile is in the store
        # before it is there.
        counters = await self._known()
        counter = counters.of.get(checkpoints)
        kept = counter.number if counter else 0
        # What this process wrote itself counts, too: store and checkpoints can have
        # been put back to one moment while it ran, and then agree with each other.
        last = self._last if checkpoints == self._id else 0
        if kept < max(written, last):
            return Consistency.STORE_IS_OLDER
        # The store may be ahead: by one for each process that is between its two
        # writes, or was killed there.
        if kept > written + _SLACK:
            return Consistency.CHECKPOINTS_ARE_OLDER
        return Consistency.SAME

    async def advance(self) -> None:
        """Raise both counters, if something happened or time has passed."""
        # Read before the counters rise: what changes in between lets them rise again.
        changes = await self._counters.changes(self._keys)
        now_ms = (await self._known()).now_ms
        is_idle = changes == self._changes
        if is_idle and now_ms - self._advanced_ms < IDLE_MS:
            return
        if not self._store:
            fresh = secrets.token_hex(16)
            self._store = await self._counters.named(self._keys, self._tenant, fresh)
        if not self._id:
            self._id, _ = await self._read(self._store)
            self._id = self._id or secrets.token_hex(16)
        # The store first. Killed in between, it is one ahead, which is allowed; the
        # other way round it would look like an older copy.
        self._last = await self._counters.add(self._keys, self._tenant, self._id)
        await self._write(self._last)
        self._changes, self._advanced_ms = changes, now_ms

    async def equalize(self) -> None:
        """Make both counters equal again, after differences were recovered."""
        counters = await self._known()
        self._store = counters.store
        self._id, written = await self._read(counters.store)
        if self._id:
            kept = counters.of[self._id].number if self._id in counters.of else 0
            # Never the smaller one: others take a counter that fell for a loss.
            newest = max(kept, written)
            await self._counters.put(self._keys, self._tenant, self._id, newest)
        self._changes = -1
        await self.advance()

    async def is_only_process(self) -> bool:
        """Return True if no process used other checkpoints with this store lately."""
        counters = await self._known()
        return all(
            one == self._id or counter.at_ms < counters.now_ms - ALIVE_MS
            for one, counter in counters.of.items()
        )

    async def _known(self) -> RestoreCounters:
        return await self._counters.read(self._keys, self._tenant)

    async def _read(self, store: str) -> tuple[str, int]:
        """Return the id of the checkpoints and their counter for a store."""
        found = await self._saver.aget_tuple(_place(store)) if store else None
        if found is None:
            return "", 0
        metadata = cast("Mapping[str, object]", found.metadata)
        number = metadata.get(NUMBER_KEY, 0)
        kept = number if isinstance(number, int) else 0
        return str(metadata.get(ID_KEY, "")), kept

    async def _write(self, number: int) -> None:
        checkpoint = {**empty_checkpoint(), "id": CHECKPOINT}
        metadata = {"source": "update", ID_KEY: self._id, NUMBER_KEY: number}
        await self._saver.aput(
            _place(self._store),
            cast("Any", checkpoint),
            cast("CheckpointMetadata", metadata),
            {},
        )


def _place(store: str) -> RunnableConfig:
    return {"configurable": {"thread_id": THREAD + store, "checkpoint_ns": ""}}
