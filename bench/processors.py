"""Tell how much time all processors of this machine have spent on work."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def used_s() -> float:
    """Return the seconds since the machine started; 0.0 without a ``/proc``.

    Of the whole machine: a Postgres is no descendant of the process that starts it.
    """
    with suppress(OSError):
        first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
        # proc(5): user, nice, system, idle, iowait, irq, softirq.
        user, nice, system, _, _, irq, softirq = map(int, first.split()[1:8])
        return (user + nice + system + irq + softirq) / _TICKS
    return 0.0
