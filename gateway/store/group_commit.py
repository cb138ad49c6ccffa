"""Group commit: what waits to change an approval is written in one step.

Calls of one card start and end at once, each with a change of the same approval. While
one change is written, others wait for their turn; whoever is next writes all of them,
each computed from what the one before it makes of the approval. Who is cancelled while
they write for others is not missed: the writing goes on in a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from twokey.gateway.approvals.changes import Change
from twokey.gateway.store.atomic_write import Assumed, Loaded, Write
from twokey.gateway.store.fences import Lease, current, unheld
from twokey.gateway.uncancelled import begun, waited_for

T = TypeVar("T")

Fence = tuple[Lease | None, str]
"""The lease of who writes, and the key of one that nobody may hold."""


@dataclass(eq=False)
class Waiting:
    """Who waits for their turn.

    Attributes:
        compute: returns what to write, or an answer instead.
        fence: under which it is written: a lease, and one that nobody may hold.
        written: what came of it, once it is written.
        has_left: nobody waits for it any more.
    """

    compute: Callable[[Loaded], Awaitable[object]]
    fence: Fence
    written: Write | None = None
    has_left: bool = False


@dataclass(eq=False)
class Row:
    """Those that wait to change one approval, in one event loop."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: list[Waiting] = field(default_factory=list[Waiting])
    _writing: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def turn(
        self, compute: Callable[[Loaded], Awaitable[object]]
    ) -> AsyncGenerator[Waiting]:
        """Wait for a turn; somebody before may have written this meanwhile."""
        mine = Waiting(compute, _fence())
        self.waiting.append(mine)
        try:
            await self.lock.acquire()
            try:
                yield mine
            finally:
                self._pass_on()
        finally:
            mine.has_left = True
            self.waiting.remove(mine)

    async def completed(self, writing: Coroutine[Any, Any, T]) -> T:
        """Write for all who wait, to the end also when the caller is cancelled.

        The turn then lasts until it is written: who is next would compute the same
        changes again, and learn only from a reading that they are written.
        """
        self._writing = task = begun(writing)
        return await waited_for(task)

    def _pass_on(self) -> None:
        writing, self._writing = self._writing, None
        if writing is None or writing.done():
            self.lock.release()
        else:
            writing.add_done_callback(lambda _: self.lock.release())


class Rows:
    """The rows of all approvals. A row lives as long as somebody waits in it."""

    def __init__(self) -> None:
        # By the loop itself: the id of one that was closed in the middle of a change
        # may be that of a new one, which would wait for a lock that nobody releases.
        self._rows = WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakValueDictionary[str, Row]
        ]()

    def of(self, approval_id: str) -> Row:
        """Return the row of an approval in this event loop."""
        loop = asyncio.get_running_loop()
        rows = self._rows.setdefault(loop, WeakValueDictionary[str, Row]())
        # In one statement, so that the row is not collected before it is returned.
        return rows.setdefault(approval_id, Row())


@dataclass(frozen=True)
class Group:
    """Changes of one approval that are written in one step, in their order."""

    parts: Sequence[tuple[Waiting, Write]]

    def as_one(self, seen: Loaded) -> Write:
        """Return the change that all of them come to."""
        writes = [write for _, write in self.parts]
        if len(writes) == 1:
            return writes[0]
        changes = [one.change for one in writes]
        ends = [one.before_ms for one in changes if one.before_ms]
        change = Change(
            # One step, one revision.
            changes[-1].approval.with_(rev=seen.approval.rev + 1),
            events=tuple(event for one in changes for event in one.events),
            before_ms=min(ends, default=0),
            resumes=any(one.resumes for one in changes),
            timers=tuple(timer for one in changes for timer in one.timers),
        )
        names = dict.fromkeys(name for one in writes for name in one.unfrozen)
        return Write(change, unfrozen=tuple(names), is_fenced=writes[0].is_fenced)

    def tell(self) -> None:
        """Let those that waited know that their changes are written."""
        for one, write in self.parts:
            one.written = write


async def computed(seen: Loaded, waiting: Sequence[Waiting]) -> Group:
    """Compute the changes of those who wait, as far as one step can write them.

    Who is left out gets a turn of their own: for an answer instead of a change, and for
    an error. Nothing is written for who has left.
    """
    fence, parts, at = _fence(), list[tuple[Waiting, Write]](), seen
    for one in tuple(waiting):
        if one.written is not None or one.fence != fence:
            continue
        try:
            found = await one.compute(at)
        except Exception:  # noqa: BLE001, S112 - it is raised in the turn of its own
            continue
        # Looked at here: they may have left while it was computed.
        if (
            one.has_left
            or not isinstance(found, Write)
            or (parts and not _go_along(parts[0][1], found))
        ):
            continue
        parts.append((one, found))
        if not _is_plain(found):
            break
        at = replace(at, approval=found.approval)
    return Group(parts)


def _fence() -> Fence:
    # A lease is equal to itself alone.
    return current(), unheld()


def _go_along(first: Write, other: Write) -> bool:
    return _is_plain(other) and other.is_fenced == first.is_fenced


def _is_plain(one: Write) -> bool:
    """Return whether a change brings no comparisons that are only its own."""
    return (
        not (one.inputs or one.rejection or one.change.fires)
        and one.standing is None
        and one.assumed == Assumed()
    )
