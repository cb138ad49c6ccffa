"""Run the benchmark: every figure with its peer or limit and its target.

``python -m bench`` measures all of them, ``python -m bench NAME`` some. The exit code
is 1 when a figure misses its target or cannot be measured. With ``--compare`` it is 1
when a ratio is more than 15 % worse than in the last kept run, whatever its target is:
targets are for a quiet machine, and a comparison is for each change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

from bench import (
    auto_call,
    cards_lost,
    click_to_ack,
    cluster_stacks,
    decision_cost,
    decision_in_crowd,
    decision_over_http,
    decision_to_tool,
    drawn_clicks,
    help_time,
    many_calls,
    peer_work,
    receipts,
    record_size,
    restart_pending,
    service_decisions,
    submit_history,
)
from bench.chart import svg
from bench.compare import worse
from bench.progress import progress
from bench.results import CHART, markdown, missed
from bench.run import Run, add, machine, new_run, without_samples
from bench.stats import Figure, NotMeasured, table
from twokey.gateway.errors import TwokeyError

KEPT = Path(__file__).parent / "baseline.json"
"""The last run that was kept; `make bench-keep` replaces it."""


class _Measure(Protocol):
    def __call__(self, *, is_quick: bool) -> Awaitable[Figure]: ...


FIGURES: dict[str, _Measure] = {
    "click_to_ack": click_to_ack.measure,
    "drawn_clicks": drawn_clicks.measure,
    "decision_to_tool": decision_to_tool.measure,
    "decision_over_http": decision_over_http.measure,
    "decision_in_crowd": decision_in_crowd.measure,
    "auto_call": auto_call.measure,
    "decision_cost": decision_cost.measure,
    "receipts": receipts.measure,
    "many_calls": many_calls.measure,
    "service_decisions": service_decisions.measure,
    "help_time": help_time.measure,
    "cards_lost": cards_lost.measure,
    "peer_work": peer_work.measure,
    "record_size": record_size.measure,
    "submit_history": submit_history.measure,
    "restart_pending": restart_pending.measure,
    "cluster_stacks": cluster_stacks.measure,
}
"""Every figure by its name on the command line."""

LONG = frozenset(
    {
        "cards_lost",
        "cluster_stacks",
        "decision_in_crowd",
        "peer_work",
        "restart_pending",
    }
)
"""Those that take minutes or need other products; ``--short`` leaves them out."""


def main(argv: list[str] | None = None) -> int:
    """Measure what the command line names, print it, and return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    names: list[str] = args.names or [
        name for name in FIGURES if not (args.short and name in LONG)
    ]
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        parser.error(f"no figure {unknown[0]!r}; choose from {', '.join(FIGURES)}")
    print(f"{machine()}\n", flush=True)
    run = new_run(is_quick=args.quick, note=args.note)
    for name in names:
        _measure(run, name)
    if args.json:
        _write_json(args.json, run)
    if args.results:
        write_results(args.results, run)
    complaints = [f"{name} could not be measured: {why}" for name, why in _failed(run)]
    if not args.quick:
        # Few samples reach and miss targets by chance.
        complaints += _shortfalls(run, args.compare)
    for line in complaints:
        print(line, file=sys.stderr)
    return 1 if complaints else 0


def write_results(folder: Path, run: Run) -> None:
    """Write a run to a folder: its data, the page and the chart made from them."""
    kept = without_samples(run)
    _write_json(folder / "results.json", kept)
    (folder / "results.md").write_text(markdown(kept), encoding="utf-8")
    (folder / CHART).write_text(svg(kept), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of: {', '.join(FIGURES)}"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few samples, whose targets do not count: a smoke test",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="without what takes minutes or needs other products",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write every sample to a file"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        help="also write results.json, results.md and results.svg",
    )
    parser.add_argument(
        "--note", default="", help="a sentence for the page, such as how busy it was"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        nargs="?",
        const=KEPT,
        metavar="FILE",
        help="fail where a ratio is more than 15 %% worse than in this run (default: "
        "bench/baseline.json), and for no missed target",
    )
    return parser


def _measure(run: Run, name: str) -> None:
    progress(name)
    try:
        figure = asyncio.run(_measured(name, is_quick=run["is_quick"]))
    except (NotMeasured, TwokeyError, OSError, AssertionError) as error:
        run["failed"][name] = str(error) or type(error).__name__
        return
    print(table(figure), flush=True)
    add(run, name, figure)


async def _measured(name: str, *, is_quick: bool) -> Figure:
    return await FIGURES[name](is_quick=is_quick)


def _failed(run: Run) -> list[tuple[str, str]]:
    return list(run["failed"].items())


def _shortfalls(run: Run, kept: Path | None) -> list[str]:
    """Return what is not as it should be, a line each."""
    if kept is not None:
        before: Run = json.loads(kept.read_text(encoding="utf-8"))
        return [
            f"More than 15 % worse than at {before['commit']}: {line}"
            for line in worse(run, before)
        ]
    found = missed(run)
    return [f"Targets that were missed: {'; '.join(found)}."] if found else []


def _write_json(path: Path, run: Run) -> None:
    path.write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
