"""Measure what one wait for the disk costs, which a durable write cannot go below."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

WRITES = 50
BYTES = 512


def flush_ms() -> float:
    """Return how long the disk takes to keep a small record, in ms (the median)."""
    taken: list[float] = []
    with (
        TemporaryDirectory(prefix="tk-bench-") as folder,
        (Path(folder) / "log").open("ab", buffering=0) as log,
    ):
        for _ in range(WRITES):
            log.write(b"x" * BYTES)
            began = time.perf_counter()
            os.fsync(log.fileno())
            taken.append((time.perf_counter() - began) * 1000)
    return median(taken)


def durable_writes_ms(count: int) -> float:
    """Return how long the disk takes for so many writes one after the other, in ms."""
    return count * flush_ms()


def waits_for_the_disk(what: str, count: int) -> str:
    """Say what the writes that are waited for cost by themselves."""
    one = flush_ms()
    noun, verb = ("write", "waits") if count == 1 else ("writes", "wait")
    return (
        f"{count} durable {noun} ({what}) {verb} for the disk: "
        f"{count * one:.1f} ms of {one:.1f} ms each"
    )
