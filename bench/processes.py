"""Read a process's use of processor and memory from Linux's ``/proc``."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def worked_s(pid: int) -> float:
    """Return the processor time of a process, in seconds.

    Source: proc(5), fields ``utime`` and ``stime`` of ``stat``.
    """
    # The command in brackets may contain spaces.
    fields = (_PROC / str(pid) / "stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process, in MB (10^6 bytes)."""
    status = (_PROC / str(pid) / "status").read_text("ascii")
    line = next(one for one in status.splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6
