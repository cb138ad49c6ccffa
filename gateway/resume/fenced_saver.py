"""Checkpoint saver that refuses writes of a stale lease holder.

Theory of operation. A process that was paused or cut off may go on in the middle of a
write, long after another one took its thread over; no look at a clock or at the lease
helps against a pause right after the look. So the database that keeps the checkpoints
knows the newest fence of each lease (`twokey.gateway.store.fences`). A new holder
writes its fence there before it reads the thread; from then on nothing of an older one
is kept, and what the older one had kept before is read.

In Postgres and SQLite the fence is compared in the transaction of the write. Any other
saver is asked for the thread's newest checkpoint before each write, and that one's
metadata has the fence: between this look and the write there is a moment in which a
pause is not noticed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any, TypeGuard, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.pregel import Pregel
from typing_extensions import override

from twokey.gateway.resume.fence_tables import (
    FENCE_KEY,
    LEASE_KEY,
    ComparedFence,
    Fence,
    NoFenceTable,
    Put,
    SqliteFence,
    fence_of,
)
from twokey.gateway.resume.kept_readings import KeptReadings, note
from twokey.gateway.store.fences import Lease, current

logger = logging.getLogger(__name__)

Saver = BaseCheckpointSaver[Any]
T = TypeVar("T")


def fenced_graph(
    graph: Pregel[Any, Any, Any, Any],
) -> Pregel[Any, Any, Any, Any]:
    """Return a copy of a graph whose checkpoints only a lease's holder can write."""
    saver: object = cast("Any", graph).checkpointer
    # A clone of a clone would lose the atomic comparison: `fence_of` knows only the
    # savers' own classes.
    if not _is_saver(saver) or isinstance(saver, FencedSaver):
        return graph
    clone = copy.copy(graph)
    cast("Any", clone).checkpointer = fenced(saver)
    return clone


def fenced(saver: Saver) -> Saver:
    """Return a clone of a saver that refuses writes under a lease that was lost.

    The clone shares everything with the saver, as that of `Saver.with_allowlist` does,
    and has its class, so that code that checks for a kind of saver accepts it.
    """
    kind = type(saver)
    clone = copy.copy(saver)
    clone.__class__ = type(f"Fenced{kind.__name__}", (FencedSaver, kind), {})
    cast("FencedSaver", clone).twokey_fence = fence_of(saver)
    cast("FencedSaver", clone).twokey_readings = KeptReadings()
    return clone


class FencedSaver(BaseCheckpointSaver[Any]):
    """What a fenced clone does otherwise than the saver it was made of.

    Outside of any lease nothing is otherwise: a program may change its threads itself.
    """

    twokey_fence: Fence
    twokey_readings: KeptReadings

    @override
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint, once the database knows the reader's fence."""
        lease = current()
        if lease and (kept := self.twokey_readings.take(lease, config)):
            return kept
        found = await self._read(lease, config)
        note(found)
        if lease:
            self.twokey_readings.keep(lease, config, found)
        return found

    @override
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint under the holder's fence."""
        if lease := current():
            metadata = _marked(metadata, lease)
        given = (config, checkpoint, metadata, new_versions)
        put = Put("aput", super().aput, given, values=(checkpoint,))
        return await self._write(config, put)

    @override
    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Keep what a task wrote, under the holder's fence."""
        given = (config, writes, task_id, task_path)
        values = [value for _, value in writes]
        put = Put("aput_writes", super().aput_writes, given, values=values)
        await self._write(config, put)

    @override
    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread, unless the lease on it was lost."""
        config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        put = Put("adelete_thread", super().adelete_thread, (thread_id,))
        await self._write(config, put)

    @override
    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint, unless the lease was lost by this clock."""
        lease = current()
        if lease is not None:
            # Nothing can be awaited here, so only this process's clock is asked.
            lease.check()
            self.twokey_readings.forget(lease)
            metadata = _marked(metadata, lease)
        return super().put(config, checkpoint, metadata, new_versions)

    @override
    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Keep what a task wrote, unless the lease was lost by this clock."""
        lease = current()
        if lease is not None:
            lease.check()
            self.twokey_readings.forget(lease)
        super().put_writes(config, writes, task_id, task_path)

    async def _read(
        self, lease: Lease | None, config: RunnableConfig
    ) -> CheckpointTuple | None:
        fence = self.twokey_fence
        if isinstance(fence, SqliteFence):
            if lease is None:
                return await fence.read(self, config)
            return await self._read_sqlite(lease, fence, config)
        # Before the read: from then on no older holder can write what this read would
        # miss.
        await self._introduce()
        return await super().aget_tuple(config)

    async def _read_sqlite(
        self, lease: Lease, fence: SqliteFence, config: RunnableConfig
    ) -> CheckpointTuple | None:
        if fence not in lease.known_to:
            lease.check()
            newest, found = await fence.raise_and_read(self, lease, config)
            if newest <= lease.fence:
                lease.known_to.add(fence)
                return found
            await self._introduce()
        return await fence.read(self, config)

    async def _write(self, config: RunnableConfig, put: Put[T]) -> T:
        """Write by a method of the saver's own, under the fence of a lease if any."""
        lease = current()
        if lease is None:
            return await put.by(None)
        self.twokey_readings.forget(lease)
        # A deletion writes without having read, so the database may not know the fence
        # yet.
        await self._introduce()
        # Stops most late writers; the fence stops those that are paused after this
        # look.
        lease.check()
        return await self.twokey_fence.write(self, lease, config, put)

    async def _introduce(self) -> None:
        """Let the database know the fence of the lease that this is done under."""
        lease = current()
        if lease is None or self.twokey_fence in lease.known_to:
            return
        lease.check()
        try:
            # A greater fence is another holder's, or one that a restored store has
            # forgotten. The store decides: it gives us a greater one, or raises
            # `LeaseLost`. Another process may do the same meanwhile, hence the loop.
            while (
                newest := await self.twokey_fence.raise_fence(self, lease)
            ) > lease.fence:
                await lease.rise_above(newest)
        except NoFenceTable:
            logger.warning("checkpoints.fence_not_atomic saver=%s", type(self).__name__)
            # For all leases to come: the table is not asked for again.
            self.twokey_fence = ComparedFence()
        # Last: after an error the next read or write introduces the lease again.
        lease.known_to.add(self.twokey_fence)


def _is_saver(found: object) -> TypeGuard[Saver]:
    return isinstance(found, BaseCheckpointSaver)


def _marked(metadata: CheckpointMetadata, lease: Lease) -> CheckpointMetadata:
    marks = {LEASE_KEY: lease.name, FENCE_KEY: lease.fence}
    return cast("CheckpointMetadata", {**metadata, **marks})
