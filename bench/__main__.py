"""Run the benchmark: every figure with its peer or limit and its target.

``python -m bench`` measures all of them, ``python -m bench NAME`` some. The exit code
is 1 when a figure misses its target or cannot be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

from bench import (
    auto_call,
    cards_lost,
    click_to_ack,
    decision_at_scale,
    decision_in_crowd,
    decision_over_http,
    decision_to_tool,
    hook_call,
    idle,
    many_calls,
    marks,
    mcp_gate,
    progress,
    record_size,
    restart_pending,
    start_time,
    submit_history,
)
from bench.results import Run, machine, markdown, section
from bench.stats import Figure, NotMeasured
from keyturn.gateway.errors import KeyturnError


class _Measure(Protocol):
    def __call__(self, *, is_quick: bool) -> Awaitable[Figure]: ...


FIGURES: dict[str, _Measure] = {
    "click_to_ack": click_to_ack.measure,
    "decision_to_tool": decision_to_tool.measure,
    "decision_in_crowd": decision_in_crowd.measure,
    "decision_over_http": decision_over_http.measure,
    "auto_call": auto_call.measure,
    "many_calls": many_calls.measure,
    "hook_call": hook_call.measure,
    "marks": marks.measure,
    "mcp_gate": mcp_gate.measure,
    "record_size": record_size.measure,
    "decision_at_scale": decision_at_scale.measure,
    "submit_history": submit_history.measure,
    "restart_pending": restart_pending.measure,
    "cards_lost": cards_lost.measure,
    "idle": idle.measure,
    "start_time": start_time.measure,
}
"""Every figure by its name on the command line."""


def main(argv: list[str] | None = None) -> int:
    """Measure and print the chosen figures, and return the exit code."""
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
        "--results", type=Path, metavar="FILE", help="also write the page of the run"
    )
    args = parser.parse_args(argv)
    names: list[str] = args.names or list(FIGURES)
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        parser.error(f"no figure {unknown[0]!r}; choose from {', '.join(FIGURES)}")
    print(f"{machine()}\n", flush=True)
    run = Run(is_quick=args.quick)
    for name in names:
        _measure(run, name)
    if args.results:
        args.results.write_text(markdown(run), encoding="utf-8")
    complaints = [f"{name} could not be measured: {why}" for name, why in run.failed]
    if run.missed and not args.quick:
        # With few samples, targets are reached and missed by chance.
        complaints.append(f"Targets that were missed: {'; '.join(run.missed)}.")
    for line in complaints:
        print(line, file=sys.stderr)
    return 1 if complaints else 0


def _measure(run: Run, name: str) -> None:
    async def figure() -> Figure:
        return await FIGURES[name](is_quick=run.is_quick)

    progress(name)
    try:
        found = asyncio.run(figure())
    except (NotMeasured, KeyturnError, OSError, AssertionError) as error:
        run.failed.append((name, str(error) or type(error).__name__))
        return
    print(section(name, found), flush=True)
    run.figures[name] = found


if __name__ == "__main__":
    sys.exit(main())
