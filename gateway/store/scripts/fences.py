"""Thread leases with fencing tokens, and the current lease of a context.

One process at a time holds a lease. But a process can be paused or cut off at any
instruction, for any time, and be replaced. So each lease has a fence, a number that
rises with each holder. Every write of a holder carries its fence, and the writing step
compares it with the newest one: in the scripts of the store
(`keyturn.gateway.store.scripts.script.Script`), and in the checkpoint database
(`keyturn.gateway.resume.fence_tables`). Late writers are rejected there.

The lease also ends by its holder's clock, no later than in the store: a holder that is
cut off from the store stops by itself.

The lease is a context variable (`current`) instead of a parameter, so that writes by
graphs, tools and third-party middleware are fenced, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.protocol.run_context import Scope, inside


class Lease:
    """The right to run one thread, from its holder's side.

    Args:
        key: name of the lease in the store.
        token: identifies this holder.
        fence: number of this holder; every later holder has a greater one.
        ends_s: end of the lease on the clock of `now_s`, unless it is renewed.
        renumber: asks the store for a fence above another one.

    Attributes:
        lost: set after `end`; wait for it in the loop that took the lease.
        known_to: checkpoint databases that have recorded this fence.
        beats: more heartbeats, sent after each renewal of the lease.
    """

    def __init__(
        self,
        key: str,
        token: str,
        *,
        fence: int,
        ends_s: float,
        renumber: Callable[[Lease, int], Awaitable[int]],
    ) -> None:
        self.key = key
        self.token = token
        self.fence = fence
        self.lost = asyncio.Event()
        self.known_to: set[object] = set()
        self.beats = list[Callable[[], Awaitable[None]]]()
        self._loop = asyncio.get_running_loop()
        self._has_ended = False
        self._ends_s = ends_s
        self._renumber = renumber

    @property
    def name(self) -> str:
        """Return the lease's name in checkpoint databases."""
        return self.key.rpartition(":")[2]

    @property
    def left_s(self) -> float:
        """Return the remaining lifetime without renewal; 0 if the lease has ended."""
        return 0.0 if self._has_ended else max(0.0, self._ends_s - now_s())

    def end(self) -> None:
        """Mark the lease as ended; callable from any thread."""
        self._has_ended = True
        with suppress(RuntimeError):  # its loop is closed and has no waiting task
            self._loop.call_soon_threadsafe(self.lost.set)

    def keep(self, ends_s: float) -> None:
        """Extend the lease; an ended lease stays ended."""
        if self.left_s:
            self._ends_s = ends_s

    def check(self) -> None:
        """Check that the lease is alive by this process's clock.

        Raises:
            LeaseLost: it has ended.
        """
        if not self.left_s:
            raise LeaseLost

    async def rise_above(self, fence: int) -> None:
        """Get a fence greater than the one in a checkpoint database.

        The database can have a greater one in two cases: another process has taken the
        lease since, or the store was restored from an older copy.

        Raises:
            LeaseLost: another process has the lease.
            StoreUnavailable: when the result is unknown.
        """
        self.fence = await self._renumber(self, fence)
        # Checkpoint databases have only seen the old fence.
        self.known_to.clear()


_LOOK_S = 1.0
"""Interval for checking the clock: timers may be late."""

NOBODY = " "
"""In scripts: a lease without a holder; matches neither fence nor token."""

_unheld: ContextVar[str] = ContextVar("keyturn_unheld_lease", default="")
_current: ContextVar[Lease | None] = ContextVar("keyturn_lease", default=None)


def current() -> Lease | None:
    """Return the lease of the current context; None outside of any."""
    return _current.get()


def holding(lease: Lease | None) -> Scope:
    """Run the block under a lease; None: without any."""
    return inside(_current, lease)


def while_unheld(key: str) -> Scope:
    """Allow fenced writes in the block only while a lease is free.

    For code that acts for a thread without its lease, or under another thread's lease.
    """
    return inside(_unheld, key)


def unheld() -> str:
    """Return the key of the lease that must be free; "" for none."""
    return _unheld.get()


def compared() -> list[tuple[str, str]]:
    """Return leases for a fenced script to compare, with their expected holders.

    Raises:
        LeaseLost: the lease of this context has ended by the local clock.
    """
    found = list[tuple[str, str]]()
    if (lease := _current.get()) is not None:
        # Local clock first: a holder that was cut off may be unable to reach the store.
        lease.check()
        found.append((lease.key, f"{lease.fence} {lease.token}"))
    if key := _unheld.get():
        found.append((key, NOBODY))
    return found


@contextmanager
def ending_in_time(taken: Lease) -> Generator[None]:
    """Notify the holder when its lease ends, even if the store does not answer."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        if left_s := taken.left_s:
            timer = loop.call_later(min(left_s, _LOOK_S), look)
        else:
            taken.end()

    look()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
