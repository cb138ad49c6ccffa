"""Find what grows in a series of samples: memory, and keys of the store by kind."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence

Sample = Mapping[str, float]
"""What was seen at one moment, by name; what is missing is zero."""

TOLERANCE = 1.15
"""How far above the largest value of the first quarter the last one may be."""

FEW = 20
"""Fewer keys, or members, more than that are no growth: load comes in waves."""

_SHARD = re.compile(r"^tk:\{s\d+\}:")
_IDS = re.compile(r"(:[^:]*)+")


def kind_of(key: str) -> str:
    """Return the kind of a key: its first part behind the shard, without any id."""
    return _IDS.sub("", _SHARD.sub("", key)) or key


def growing(samples: Sequence[Sample]) -> list[str]:
    """Return a line for each name that ends above the band of the first quarter.

    The band is what the first quarter of the samples reached, and `TOLERANCE` above it.
    The median of the last quarter is compared: one peak is no growth.
    """
    quarter = len(samples) // 4
    if quarter == 0:
        return ["There are fewer than four samples, which show no growth."]
    names = sorted({name for one in samples for name in one})
    return [
        f"{name} grew from at most {most:,.0f} to {last:,.0f}"
        for name in names
        for most in [max(one.get(name, 0.0) for one in samples[:quarter])]
        for last in [
            statistics.median(one.get(name, 0.0) for one in samples[-quarter:])
        ]
        if last > max(most * TOLERANCE, most + FEW)
    ]
