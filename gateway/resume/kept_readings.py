"""Give a run the checkpoint that was read right before it, instead of another reading.

Under the lease of its thread, a worker reads where the thread stands, finds the answers
to its questions, and has LangGraph resume it, which reads the same checkpoint again.
No other holder may write it meanwhile, so the first reading is kept for the second.

It is given to one run only, and only where nothing but questions was written beside the
checkpoint. To show where a thread stands, LangGraph applies the results of tasks to the
values that were read, by reducers that may change these in place.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT

from twokey.gateway.clock import now_s
from twokey.gateway.store.fences import Lease

KEPT_S: Final = 0.1
"""How long a reading is kept. A program may change its thread without a lease, and a
run should notice that as it did before."""


@dataclass(slots=True)
class Reading:
    """What was read last of a place; None before that, or where nothing is."""

    found: CheckpointTuple | None = None


_reading: ContextVar[Reading | None] = ContextVar("twokey_reading", default=None)


@contextmanager
def keeping() -> Generator[Reading]:
    """Keep what is read inside the block for the run that comes next."""
    reading = Reading()
    token = _reading.set(reading)
    try:
        yield reading
    finally:
        _reading.reset(token)


def note(found: CheckpointTuple | None) -> None:
    """Tell who keeps readings, if anybody does, what was read."""
    reading = _reading.get()
    if reading is not None:
        reading.found = found


@dataclass(frozen=True)
class _Kept:
    place: tuple[str, str]
    found: CheckpointTuple
    at_s: float


@dataclass(frozen=True)
class KeptReadings:
    """The last readings of a checkpoint database, one a lease."""

    _by_lease: WeakKeyDictionary[Lease, _Kept] = field(
        default_factory=WeakKeyDictionary[Lease, _Kept]
    )

    def keep(
        self, lease: Lease, config: RunnableConfig, found: CheckpointTuple | None
    ) -> None:
        """Keep a reading, if it was asked for and the run may have it."""
        if _reading.get() is not None and found is not None and _is_plain(found):
            self._by_lease[lease] = _Kept(_place(config), found, now_s())

    def take(self, lease: Lease, config: RunnableConfig) -> CheckpointTuple | None:
        """Return what was read of this place a moment ago, to one caller only."""
        kept = self._by_lease.get(lease)
        is_keeping = _reading.get() is not None
        if is_keeping or kept is None or kept.place != _place(config):
            return None
        if config.get("configurable", {}).get("checkpoint_id"):
            return None
        del self._by_lease[lease]
        return kept.found if now_s() - kept.at_s < KEPT_S else None

    def forget(self, lease: Lease) -> None:
        """Forget what was read under a lease, under which something is written."""
        self._by_lease.pop(lease, None)


def _is_plain(found: CheckpointTuple) -> bool:
    return all(channel == INTERRUPT for _, channel, _ in found.pending_writes or ())


def _place(config: RunnableConfig) -> tuple[str, str]:
    given = config.get("configurable", {})
    return str(given.get("thread_id", "")), str(given.get("checkpoint_ns", ""))
