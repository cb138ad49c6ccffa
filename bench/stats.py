"""Medians and ratios of samples over several rounds, with their spread.

Absolute times of a busy machine mean little, but the times of two subjects in the same
run, measured alternately, can be compared. A figure is therefore a ratio for each
round: its value is the median over the rounds, and the smallest and largest round are
its noise. If a target is a time or a size, the figure is that value, with its unit.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MEDIAN = 0.5
P95 = 0.95


class NotMeasured(Exception):
    """A run is invalid: a subject did not do the measured work."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The samples of one subject, by round.

    Attributes:
        name: the name of the subject.
        unit: ``ms`` for times, ``/s`` for rates.
        rounds: at least one sample each.
    """

    name: str
    unit: str
    rounds: tuple[tuple[float, ...], ...]

    def at(self, share: float) -> float:
        """Return the value that this share of all samples does not exceed."""
        return percentile([one for row in self.rounds for one in row], share)

    def by_round(self, share: float) -> tuple[float, ...]:
        """Return the same for each round."""
        return tuple(percentile(row, share) for row in self.rounds)


@dataclass(frozen=True, slots=True)
class Result:
    """The comparison of two subjects, or the plain value of one.

    Attributes:
        name: the dividend and the divisor.
        value: median over the rounds.
        low: the smallest round.
        high: the largest round.
        at_least: the lower target, if there is one.
        at_most: the upper target, if there is one.
        unit: the unit of a plain value, such as ``ms``; "" for a ratio.
        limit: the bound that was measured in the same run, in words.
    """

    name: str
    value: float
    low: float
    high: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    limit: str = ""

    @property
    def is_reached(self) -> bool:
        """Return True if every target is met, or if there is none."""
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def target(self) -> str:
        """Return the target and whether it is met, in words; "" without one."""
        if self.at_least is None and self.at_most is None:
            return ""
        sign, bound = (
            ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        )
        unit = f" {self.unit}" if self.unit else ""
        return f"{sign} {bound:,g}{unit} {'reached' if self.is_reached else 'MISSED'}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One claim of the README, measured.

    Attributes:
        title: the measured quantity.
        about: the method, in a line or two.
        measured: the absolute values, only as context.
        results: the results that count.
    """

    title: str
    about: str
    measured: tuple[Measured, ...]
    results: tuple[Result, ...]


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the samples do not exceed, interpolated.

    Raises:
        ValueError: when there is no sample.
    """
    if not samples:
        raise ValueError("There is no sample to take a percentile of.")
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def result(
    name: str,
    above: Measured,
    below: Measured | None = None,
    *,
    share: float = MEDIAN,
    at_least: float | None = None,
    at_most: float | None = None,
    limit: str = "",
) -> Result:
    """Divide two subjects of the same rounds; without a second, take one as it is."""
    rounds = above.by_round(share)
    if below:
        pairs = zip(rounds, below.by_round(share), strict=True)
        rounds = tuple(over / under for over, under in pairs)
    return Result(
        name,
        statistics.median(rounds),
        min(rounds),
        max(rounds),
        at_least=at_least,
        at_most=at_most,
        unit="" if below else above.unit,
        limit=limit,
    )


def short(value: float) -> str:
    """Return three significant digits: 0, 0.0412, 1.84, 26.3, 257, 1,180."""
    if value == 0:
        return "0"
    decimals = 4 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"
