"""Tell how much time processors have spent on work: all of them, and for whom."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def used_s() -> float:
    """Return the seconds since the machine started; 0.0 without a ``/proc``.

    Of the whole machine: a Postgres is no descendant of the process that starts it.
    """
    with suppress(OSError):
        first = (_PROC / "stat").read_text(encoding="ascii").split("\n", 1)[0]
        # proc(5): user, nice, system, idle, iowait, irq, softirq.
        user, nice, system, _, _, irq, softirq = map(int, first.split()[1:8])
        return (user + nice + system + irq + softirq) / _TICKS
    return 0.0


def worked_s(processes: Iterable[int]) -> float:
    """Return for how many seconds these processes have worked, all threads together.

    In nanoseconds of the scheduler, unlike `used_s`: a measurement takes half a second.
    Without a ``/proc``, 0.0.
    """
    worked_ns = 0
    for process in processes:
        for thread in _threads(process):
            # A thread may end meanwhile, and take its time with it.
            with suppress(OSError):
                worked_ns += int((thread / "schedstat").read_text("ascii").split()[0])
    return worked_ns / 1e9


def with_descendants(process: int) -> list[int]:
    """Return a process and all that it started, directly or not."""
    found = [process]
    for one in found:
        for thread in _threads(one):
            with suppress(OSError):
                found += map(int, (thread / "children").read_text("ascii").split())
    return found


def _threads(process: int) -> list[Path]:
    with suppress(OSError):
        return [*(_PROC / str(process) / "task").iterdir()]
    return []
