"""Find what grows in a series of samples: memory, and keys of the store by kind."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """The observations at one moment.

    Attributes:
        at_s: time since the start of the load.
        found: sizes, by name; a missing one is zero.
        left_s: the longest remaining lifetime of a key, by the names of `found`, or the
            time in which memory fills its caches; a missing one takes no time.
    """

    at_s: float
    found: Mapping[str, float]
    left_s: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Judgement:
    """The findings: a line for each name that grew or cannot be judged.

    Attributes:
        per_hour: growth of each judged name in an hour.
    """

    grown: list[str]
    too_short: list[str]
    per_hour: dict[str, float] = field(default_factory=dict[str, float])


FEWEST = 8
"""Fewer samples show the waves of load: a quarter of them would be one moment."""

RISE = 0.05
"""How much of the middle value a certain slope may add over all samples."""

FEW = 20
"""Fewer keys, or members, more than that are no growth: load comes in waves."""

_CERTAIN = 2.576
"""Standard deviations that hold 99 of 100 values of a normal distribution."""

_TAG = re.compile(r"^tk:\{[^}]+\}:")
_IDS = re.compile(r"(:[^:]*)+")
_TENANTS = re.compile(r"^[0-9a-f]{32}:(?P<kind>\w+)$")


def kind_of(key: str) -> str:
    """Return the kind of a key: its name behind the hash tag, without any id."""
    name = _TAG.sub("", key)
    # What lives as long as the store names its kind last, behind the hash of a tenant.
    if permanent := _TENANTS.match(name):
        return permanent["kind"]
    return _IDS.sub("", name) or key


def judge(samples: Sequence[Sample]) -> Judgement:
    """Return the names of what certainly rises (`_slope`).

    Keys with a lifetime become more until the first of them end, under a constant load.
    So only samples from after the longest lifetime count.
    """
    judgement = Judgement([], [])
    for name in sorted({name for one in samples for name in one.found}):
        lifetime_s = max(one.left_s.get(name, 0.0) for one in samples)
        steady = [
            (one.at_s, one.found.get(name, 0.0))
            for one in samples
            if one.at_s >= lifetime_s
        ]
        if len(steady) < FEWEST:
            judgement.too_short.append(
                f"{name}: {len(steady)} of {FEWEST} samples that it needs were taken "
                f"after its lifetime of {lifetime_s:,.0f} s"
            )
            continue
        least, slope = _slope(steady)
        judgement.per_hour[name] = slope * 3600
        middle = statistics.median(value for _, value in steady)
        if least * (steady[-1][0] - steady[0][0]) > max(middle * RISE, FEW):
            judgement.grown.append(
                f"{name} rises by {slope * 3600:,.0f} an hour, around {middle:,.0f}"
            )
    return judgement


def _slope(steady: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the least slope at 99 %, and the slope: both by Theil and Sen.

    The slope is the median of those between any two samples, so peaks and waves do not
    bend it; its interval is that of Kendall's tau
    (https://en.wikipedia.org/wiki/Theil-Sen_estimator).
    """
    count = len(steady)
    slopes = sorted(
        (later - value) / (later_s - at_s)
        for index, (at_s, value) in enumerate(steady)
        for later_s, later in steady[index + 1 :]
        if later_s > at_s
    )
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    least = max(0, math.floor((len(slopes) - _CERTAIN * deviation) / 2))
    return slopes[least], statistics.median(slopes)
