"""Bound the work that one call may cause, in steps instead of seconds.

A schema of the agent's process and arguments of 64 KiB can together cause unbounded
work. Each check spends steps of one budget, so the outcome is the same on every machine
at every time. A step is about four microseconds of a typical processor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar, cast

T = TypeVar("T")

MAX_STEPS = 8_000
"""Most steps for the checks of one call: at most 50 ms of processor time."""

LARGE_BYTES = 32 * 1024
"""Most data that is read on the event loop: at most 20 ms to hash."""

_SIZED = str, bytes, list, dict

QUICK_STEPS = 500
"""Most steps on the event loop before the work restarts in a thread."""


class TooMuchWork(ValueError):
    """The budget of a call is spent: it is unknown whether the arguments fit."""

    def __init__(self) -> None:
        super().__init__("these arguments take too long to check")


class _SlowWork(Exception):
    """Work is too long for the event loop."""


@dataclass
class Budget:
    """Steps left, and steps spent."""

    left: int
    spent: int = 0


_budget: ContextVar[Budget | None] = ContextVar("keyturn_budget", default=None)
_quick: ContextVar[Budget | None] = ContextVar("keyturn_quick", default=None)


@contextmanager
def one_budget(*, is_own: bool = False) -> Generator[Budget]:
    """Share one budget between all checks inside the block; nested blocks join it.

    With ``is_own`` it is a separate budget even inside another block.
    """
    outer = _budget.get()
    if outer is not None and not is_own:
        yield outer
        return
    budget = Budget(MAX_STEPS)
    token = _budget.set(budget)
    try:
        yield budget
    finally:
        _budget.reset(token)


def spend(steps: int, *, is_done: bool = False) -> None:
    """Spend steps of the current budget, if there is one.

    With ``is_done`` the work was done earlier (a cached result) and does not count for
    the event loop.

    Raises:
        TooMuchWork: when the budget is spent.
    """
    budget, quick = _budget.get(), _quick.get()
    if budget is None:
        return
    budget.left -= steps
    budget.spent += steps
    if budget.left < 0:
        raise TooMuchWork
    if quick is not None and not is_done:
        quick.left -= steps
        if quick.left < 0:
            raise _SlowWork


def is_large(data: Iterable[object]) -> bool:
    """Return whether JSON values together are larger than `LARGE_BYTES`.

    It stops reading at that size.
    """
    left, rest = LARGE_BYTES, [*data]
    while rest:
        one = rest.pop()
        left -= len(cast("Sized", one)) if isinstance(one, _SIZED) else 8
        if left < 0:
            return True
        if isinstance(one, dict):
            rest += (members := cast("dict[str, object]", one))
            rest += members.values()
        elif isinstance(one, list):
            rest += cast("list[object]", one)
    return left < 0


async def aside(work: Callable[[], T], data: Iterable[object] = ()) -> T:
    """Do pure work without blocking the event loop: in a thread if it is long.

    Args:
        work: may be restarted.
        data: its input, as JSON values or their texts; large data takes long.
    """
    if is_large(data):
        return await asyncio.to_thread(work)
    token = _quick.set(Budget(QUICK_STEPS))
    try:
        return work()
    except _SlowWork:
        pass  # begun again, in a thread
    finally:
        _quick.reset(token)
    return await asyncio.to_thread(work)
