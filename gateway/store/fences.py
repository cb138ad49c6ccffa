"""Lease on a thread and its fencing token; the current one of this context.

Theory of operation. A lease is held by one process at a time, but a process can be
paused or cut off for any time at any instruction, and be replaced meanwhile. So a
lease has a fence: a number that rises with each holder. Whatever a holder writes is
written under its fence, and the step that writes compares the fence with the newest
one: the scripts of the store (`keyturn.gateway.store.script.Script`), and the
checkpoint database (`keyturn.gateway.resume.fence_tables`). A late writer is refused
there.

The lease also ends by its holder's own clock, no later than in the store: a holder that
is cut off from the store stops by itself.

The lease is found in the context (`current`), not handed from function to function:
what a graph, a tool or a middleware of somebody else's does inside is fenced, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar

from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.protocol.run_context import Inside


class Lease:
    """The right to run one thread, as its holder knows it.

    Args:
        key: name of the lease in the store.
        token: names this holder.
        fence: number of this holder; every later one has a greater one.
        ends_s: when it ends by `now_s`, unless it is kept.
        renumber: asks the store for a fence above another one.

    Attributes:
        lost: set after `end`; wait for it in the loop that took it.
        known_to: the checkpoint databases that know this holder's fence.
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
        self._loop = asyncio.get_running_loop()
        self._has_ended = False
        self._ends_s = ends_s
        self._renumber = renumber

    @property
    def name(self) -> str:
        """Return the name under which checkpoint databases know the lease."""
        return self.key.rpartition(":")[2]

    @property
    def left_s(self) -> float:
        """Return how long it lives unless it is kept; 0 when it has ended."""
        return 0.0 if self._has_ended else max(0.0, self._ends_s - now_s())

    def end(self) -> None:
        """Mark the lease as ended; callable from any thread."""
        self._has_ended = True
        with suppress(RuntimeError):  # its loop is closed; nobody waits there
            self._loop.call_soon_threadsafe(self.lost.set)

    def keep(self, ends_s: float) -> None:
        """Extend the lease; one that has ended does not come back."""
        if self.left_s:
            self._ends_s = ends_s

    def check(self) -> None:
        """Refuse to go on when the lease has ended by this process's clock.

        Raises:
            LeaseLost: it has.
        """
        if not self.left_s:
            raise LeaseLost

    async def rise_above(self, fence: int) -> None:
        """Get a fence greater than one that a checkpoint database knows.

        It can know a greater one than the store gave us in two cases: another process
        has taken the lease since, or the store was put back to an older copy.

        Raises:
            LeaseLost: another process has the lease.
            StoreUnavailable: when that is not known.
        """
        self.fence = await self._renumber(self, fence)
        # Checkpoint databases have seen the old number only.
        self.known_to.clear()


_LOOK_S = 1.0
"""How long the clock is not looked at at most: a timer may be later than asked."""

NOBODY = " "
"""How scripts compare that a lease has no holder: neither fence nor token."""

_unheld: ContextVar[str] = ContextVar("keyturn_unheld_lease", default="")
_current: ContextVar[Lease | None] = ContextVar("keyturn_lease", default=None)


def current() -> Lease | None:
    """Return the lease that this code runs under; None outside of any."""
    return _current.get()


def holding(lease: Lease) -> AbstractContextManager[object]:
    """Do everything inside the block under a lease."""
    return Inside(_current, lease)


def while_unheld(key: str) -> AbstractContextManager[object]:
    """Write what is fenced inside the block only while nobody holds a lease.

    For who acts for a thread without its lease, or under that of another thread.
    """
    return Inside(_unheld, key)


def unheld() -> str:
    """Return the key of the lease that nobody may hold; "" for none."""
    return _unheld.get()


def compared() -> list[tuple[str, str]]:
    """Return what a fenced script compares: leases, and who has to hold each.

    Raises:
        LeaseLost: the lease of this context has ended by our own clock.
    """
    found = list[tuple[str, str]]()
    if (lease := _current.get()) is not None:
        # By our own clock first: a holder that was cut off need not ask a store that it
        # may not reach.
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
