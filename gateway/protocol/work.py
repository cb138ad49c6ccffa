"""Bound the work that one call may cause, in steps instead of seconds.

A schema of the agent's process and arguments of 64 KiB together cause any amount of
work. Each check spends steps of one budget, so the outcome is the same on every
machine and at every moment. A step is about four microseconds of a usual processor.
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
"""How much work the checks of one call may be: at most 50 ms of processor time."""

LARGE_BYTES = 8 * 1024
"""How much of data is read on the event loop; ten times as much takes 50 ms to hash."""

_SIZED = str, bytes, list, dict

QUICK_STEPS = 500
"""How much work is done on the event loop before it goes on in a thread."""


class TooMuchWork(ValueError):
    """The budget of a call is spent, so nobody knows whether the arguments fit."""

    def __init__(self) -> None:
        super().__init__("these arguments take too long to check")


class _SlowWork(Exception):
    """Work is too long for the event loop."""


@dataclass
class Budget:
    """How much work is left, and how much was done."""

    left: float
    spent: int = 0


_budget: ContextVar[Budget | None] = ContextVar("keyturn_budget", default=None)
_quick: ContextVar[Budget | None] = ContextVar("keyturn_quick", default=None)


@contextmanager
def one_budget(steps: float = MAX_STEPS, *, is_own: bool = False) -> Generator[Budget]:
    """Let all checks inside the block spend one budget, that of the outer block if any.

    Args:
        steps: of the budget.
        is_own: the block has its own budget, whatever is around it.
    """
    outer = _budget.get()
    if outer is not None and not is_own:
        yield outer
        return
    budget = Budget(steps)
    token = _budget.set(budget)
    try:
        yield budget
    finally:
        _budget.reset(token)


def spend(steps: int, *, is_done: bool = False) -> None:
    """Spend steps of the budget around this, if there is one.

    With ``is_done`` they were worked before, and hold up nobody now.

    Raises:
        TooMuchWork: when it has no more.
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
    """Return whether JSON values together take more than some kilobytes.

    It looks at no more than that, however large they are.
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
    """Do pure work without holding up the event loop: in a thread if it is long.

    Args:
        work: may be begun again.
        data: what it reads, as JSON values or their texts; a large one takes long.
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
