"""Write a run as a page (`results.md`): figures with a target first."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.stats import MEDIAN, P95, Figure, Result, short

_ROOT = Path(__file__).parent.parent

_HEAD = """\
# Results of the benchmark

Written by `make bench`; do not edit.
{machine}. Commit {commit}, {date}.{quick}

A ratio compares two subjects that were measured in turns in one run. Its value is the
median of the rounds; the smallest and the largest round are next to it. Times and sizes
depend on the machine.

## Figures with a target
"""


@dataclass
class Run:
    """One run of the benchmark.

    Attributes:
        is_quick: True for a smoke test, whose targets do not count.
        figures: by name.
        failed: names of figures that could not be measured, each with the reason.
    """

    is_quick: bool
    figures: dict[str, Figure] = field(default_factory=dict[str, Figure])
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    @property
    def targets(self) -> list[Result]:
        """Return every result that has a target."""
        found = [one for figure in self.figures.values() for one in figure.results]
        return [one for one in found if one.target]

    @property
    def missed(self) -> list[str]:
        """Return the names of the results that miss their target."""
        return [one.name for one in self.targets if not one.is_reached]


def machine() -> str:
    """Return Python, system and processors of this machine."""
    system = f"{platform.system()} {platform.machine()}"
    processors = f"{os.cpu_count()} processors"
    return f"Python {platform.python_version()}, {system}, {processors}"


def markdown(run: Run) -> str:
    """Return the page of a run."""
    now = datetime.now(UTC)  # noqa: TID251 - when it was measured
    head = _HEAD.format(
        machine=machine(),
        commit=_commit(),
        date=now.isoformat(timespec="minutes"),
        quick=" A smoke test: its values mean nothing." * run.is_quick,
    )
    parts = [head, _results(run.targets)]
    if run.failed:
        parts += ["## Not measured\n", _table(("Figure", "Why"), run.failed)]
    parts += ["## How each was measured\n"]
    parts += [section(name, figure) for name, figure in run.figures.items()]
    return "\n".join(parts)


def section(name: str, figure: Figure) -> str:
    """Return one figure: how it was measured, its results, and the absolute values."""
    values = (
        (one.name, *(_value(one.at(share), one.unit) for share in (MEDIAN, P95)))
        for one in figure.measured
    )
    parts = (
        f"### {figure.title} (`python -m bench {name}`)\n",
        f"{figure.about}\n",
        _results(figure.results),
        _table(("For context only", "p50", "p95"), values),
    )
    return "\n".join(parts)


def _results(results: Iterable[Result]) -> str:
    head = ("Figure", "Measured", "Rounds", "Target", "Limit or peer")
    return _table(head, map(_target_row, results))


def _target_row(one: Result) -> tuple[str, ...]:
    rounds = f"{short(one.low)} to {short(one.high)}"
    target = one.target.replace("MISSED", "**missed**")
    return one.name, _value(one.value, one.unit), rounds, target, one.limit


def _value(value: float, unit: str) -> str:
    return f"{short(value)} {unit}".rstrip()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def _commit() -> str:
    shown = ["git", "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(
        shown, cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"
