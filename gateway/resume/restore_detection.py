"""Detect that the store or the checkpoint database was lost or restored.

Both keep the number of the last mark, which rises while anything happens. A mark is
written to the store first, so after a crash in between the store is one ahead. Behind
the checkpoints it is only when it lost what was written to it.

Each store has marks of its own in the checkpoints, because several may share them; a
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

from twokey.gateway.store.marks import Marks
from twokey.gateway.store.store import Store

THREAD = "twokey:mark:"
"""Begin of the thread under which checkpoints keep their mark for one store."""
CHECKPOINT = "00000000-0000-6000-8000-000000000000"
"""The one checkpoint of it, written over each time."""
ID_KEY, NUMBER_KEY = "twokey_checkpoints", "twokey_mark"

ALIVE_MS = 600_000
"""How long after their last mark checkpoints may still belong to a gateway that only
restarts: what waits for threads that ours do not have is left alone so long."""
# Far below ALIVE_MS: a gateway with nothing to do must not count as gone.
IDLE_MS = 40_000
"""How soon a mark is written again while nothing happens."""
_SLACK = 16
"""How many marks the store may be ahead of the checkpoints: processes mark at once."""


class Consistency(StrEnum):
    """Whether the store or the checkpoints are older than the other."""

    SAME = "same"
    STORE_IS_OLDER = "store_is_older"
    CHECKPOINTS_ARE_OLDER = "checkpoints_are_older"


class RestoreDetector:
    """The marks of one store and one set of checkpoints.

    Args:
        store: the gateway's store.
        saver: the checkpoints.
        tenant: whose shard of the store.
    """

    def __init__(
        self, store: Store, saver: BaseCheckpointSaver[Any], *, tenant: str = "default"
    ) -> None:
        self._marks = store.marks
        self._saver = saver
        self._keys = store.keys_of_tenant(tenant)
        self._tenant = tenant
        self._store = ""
        self._id = ""
        self._last = 0
        self._changes = -1
        self._marked_ms = 0

    async def compare(self) -> Consistency:
        """Return which of the two is older, if any; nothing is written."""
        store = (await self._known()).store
        if self._store and store != self._store:
            return Consistency.STORE_IS_OLDER  # it was emptied under this process
        checkpoints, written = await self._read(store)
        # The checkpoints first: what another process writes meanwhile is in the store
        # before it is there.
        marks = await self._known()
        marked = marks.of.get(checkpoints)
        kept = marked.number if marked else 0
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

    async def mark(self) -> None:
        """Write a mark to both, if something happened or time has passed."""
        # Read before the mark is made: what changes in between makes another mark due.
        changes = await self._marks.changes(self._keys)
        now_ms = (await self._known()).now_ms
        is_idle = changes == self._changes
        if is_idle and now_ms - self._marked_ms < IDLE_MS:
            return
        if not self._store:
            fresh = secrets.token_hex(16)
            self._store = await self._marks.named(self._keys, self._tenant, fresh)
        if not self._id:
            self._id, _ = await self._read(self._store)
            self._id = self._id or secrets.token_hex(16)
        # The store first. Killed in between, it is one ahead, which is allowed; the
        # other way round it would look like an older copy.
        self._last = await self._marks.add(self._keys, self._tenant, self._id)
        await self._write(self._last)
        self._changes, self._marked_ms = changes, now_ms

    async def align(self) -> None:
        """Make both marks equal again, after differences were recovered."""
        marks = await self._known()
        self._store = marks.store
        self._id, written = await self._read(marks.store)
        if self._id:
            kept = marks.of[self._id].number if self._id in marks.of else 0
            # Never the smaller one: to every other process a mark that fell is a loss.
            newest = max(kept, written)
            await self._marks.put(self._keys, self._tenant, self._id, newest)
        self._changes = -1
        await self.mark()

    async def is_alone(self) -> bool:
        """Return True if no process used other checkpoints with this store lately."""
        marks = await self._known()
        return all(
            one == self._id or marked.at_ms < marks.now_ms - ALIVE_MS
            for one, marked in marks.of.items()
        )

    async def _known(self) -> Marks:
        return await self._marks.read(self._keys, self._tenant)

    async def _read(self, store: str) -> tuple[str, int]:
        """Return the id of the checkpoints and the mark that they have of a store."""
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
