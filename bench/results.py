"""A run as a page (`results.md`): figures with a target first, then everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.run import Run
from bench.stats import Ratio, short

CHART = "results.svg"

_HEAD = """\
# Results of the benchmark

Written by `make bench`; change nothing here by hand.
{machine}. Commit {commit}, {date}.{quick}{note}

A ratio compares two subjects that were measured in turns in one run; it is the median
over the rounds, and the smallest and the largest round stand beside it. Times and sizes
depend on the machine.
"""


def ratio_of(data: Mapping[str, Any]) -> Ratio:
    """Return a ratio of a run's data."""
    return Ratio(**{key: value for key, value in data.items() if key != "is_reached"})


def targets(run: Run) -> list[tuple[str, Ratio]]:
    """Return every ratio that has a target, with the title of its figure."""
    return [
        (str(figure["title"]), one)
        for figure in run["figures"].values()
        for one in map(ratio_of, figure["ratios"])
        if one.target
    ]


def missed(run: Run) -> list[str]:
    """Return the names of the ratios that miss their target."""
    return [one.name for _, one in targets(run) if not one.is_reached]


def markdown(run: Run) -> str:
    """Return the page of a run."""
    quick = " A smoke test with few samples: its values mean nothing." * run["is_quick"]
    head = _HEAD.format(
        machine=run["machine"],
        commit=run["commit"],
        date=run["date"],
        quick=quick,
        note=f" {run['note']}" if run["note"] else "",
    )
    parts = [
        head,
        f"![Each figure beside its target]({CHART})\n",
        "## Figures with a target\n",
        _table(
            ("Figure", "Measured", "Rounds", "Target", "Limit or peer"),
            (_target_row(one) for _, one in targets(run)),
        ),
    ]
    if run["failed"]:
        rows = sorted(run["failed"].items())
        parts += ["## Not measured\n", _table(("Figure", "Why"), rows)]
    parts += ["## How each was measured\n"]
    parts += [_section(name, figure) for name, figure in run["figures"].items()]
    return "\n".join(parts)


def _section(name: str, figure: dict[str, Any]) -> str:
    others = [one for one in map(ratio_of, figure["ratios"]) if not one.target]
    parts = [f"### {figure['title']} (`python -m bench {name}`)\n", figure["about"], ""]
    if others:
        rows = (_target_row(one)[:3] for one in others)
        parts.append(_table(("Also compared", "Measured", "Rounds"), rows))
    parts.append(
        _table(
            ("For context only", "p50", "p95"),
            (
                (one["name"], *(_value(one[at], one["unit"]) for at in ("p50", "p95")))
                for one in figure["measured"]
            ),
        )
    )
    return "\n".join(parts)


def _target_row(one: Ratio) -> tuple[str, ...]:
    rounds = f"{short(one.low)} to {short(one.high)}"
    target = one.target.replace("MISSED", "**missed**")
    return one.name, _value(one.value, one.unit), rounds, target, one.limit


def _value(value: float, unit: str) -> str:
    return f"{short(value)} {unit}".rstrip()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"
