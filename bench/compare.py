"""Compare a run with the last kept one, by what does not depend on the machine."""

from __future__ import annotations

from bench.results import ratio_of
from bench.run import Run
from bench.stats import Ratio, short

BEYOND = 0.15
"""How much worse a ratio may be, since two runs of the same code differ."""

_TIMES = frozenset({"ms", "s", "/s"})
"""Units of values that say as much about the machine as about the code."""


def worse(run: Run, kept: Run) -> list[str]:
    """Return one line for each ratio that is more than 15 % worse than it was.

    Only what has a target is compared, since a target says what is better; what one of
    the two runs did not measure is left out.
    """
    before = _by_name(kept)
    return [
        f"{name}: {short(one.value)}, was {short(before[name].value)}"
        for name, one in _by_name(run).items()
        if name in before and _is_worse(one, before[name])
    ]


def _by_name(run: Run) -> dict[str, Ratio]:
    return {
        one.name: one
        for figure in run["figures"].values()
        for one in map(ratio_of, figure["ratios"])
        if one.target and one.unit not in _TIMES
    }


def _is_worse(now: Ratio, before: Ratio) -> bool:
    if now.at_least is not None:
        return now.value < before.value * (1 - BEYOND)
    return now.value > before.value * (1 + BEYOND)
