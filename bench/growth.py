"""Find what grows in a series of samples: memory, and keys of the store by kind."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment.

    Attributes:
        at_s: for how long there was load.
        found: how much there was, by name; what is missing is zero.
        left_s: the longest that a key has left to live, by the names of `found`; what
            is missing has no lifetime.
    """

    at_s: float
    found: Mapping[str, float]
    left_s: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Judgement:
    """What the samples say: a line for each name that grew or cannot be judged."""

    grown: list[str]
    too_short: list[str]


FEWEST = 8
"""Fewer samples show the waves of load: a quarter of them would be one moment."""

TOLERANCE = 1.15
"""How far above the largest value of the first quarter the last one may be."""

FEW = 20
"""Fewer keys, or members, more than that are no growth: load comes in waves."""

_SHARD = re.compile(r"^tk:\{s\d+\}:")
_IDS = re.compile(r"(:[^:]*)+")


def kind_of(key: str) -> str:
    """Return the kind of a key: its first part behind the shard, without any id."""
    return _IDS.sub("", _SHARD.sub("", key)) or key


def judge(samples: Sequence[Sample]) -> Judgement:
    """Say which names end above the band of the first quarter.

    The band is what the first quarter of the samples reached, and `TOLERANCE` above it.
    The median of the last quarter is compared: one peak is no growth.
    Keys with a lifetime become more until the first of them end, under a load that is
    always the same. So only samples from after the longest lifetime count.
    """
    judgement = Judgement([], [])
    for name in sorted({name for one in samples for name in one.found}):
        lifetime_s = max(one.left_s.get(name, 0.0) for one in samples)
        steady = [one.found.get(name, 0.0) for one in samples if one.at_s >= lifetime_s]
        if len(steady) < FEWEST:
            judgement.too_short.append(
                f"{name}: {len(steady)} of {FEWEST} samples that it needs were taken "
                f"after its lifetime of {lifetime_s:,.0f} s"
            )
        elif line := _growth(steady):
            judgement.grown.append(f"{name} {line}")
    return judgement


def _growth(steady: Sequence[float]) -> str:
    quarter = len(steady) // 4
    most, last = max(steady[:quarter]), statistics.median(steady[-quarter:])
    if last <= max(most * TOLERANCE, most + FEW):
        return ""
    return f"grew from at most {most:,.0f} to {last:,.0f}"
