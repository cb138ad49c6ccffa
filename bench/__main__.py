"""Run the benchmarks of the README's figures, as ratios within one run.

``python -m bench`` measures all of them, ``python -m bench NAME`` one. The exit
code is 1 when a ratio misses its target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

from bench import auto_call, click_to_ack, decision_cost, decision_to_tool, many_calls
from bench.stats import Figure, NotMeasured, table
from twokey.gateway.errors import TwokeyError


class _Measure(Protocol):
    def __call__(self, *, is_quick: bool) -> Awaitable[Figure]: ...


FIGURES: dict[str, _Measure] = {
    "click_to_ack": click_to_ack.measure,
    "decision_to_tool": decision_to_tool.measure,
    "auto_call": auto_call.measure,
    "decision_cost": decision_cost.measure,
    "many_calls": many_calls.measure,
}
"""Every figure by its name on the command line."""


def main(argv: list[str] | None = None) -> int:
    """Measure what the command line names, print it, and return the exit code."""
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
        "--json", type=Path, metavar="FILE", help="also write every sample to a file"
    )
    args = parser.parse_args(argv)
    names: list[str] = args.names or list(FIGURES)
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        parser.error(f"no figure {unknown[0]!r}; choose from {', '.join(FIGURES)}")
    print(f"{_machine()}\n", flush=True)
    figures: dict[str, object] = {}
    missed: list[str] = []
    for name in names:
        try:
            figure = asyncio.run(_measured(name, is_quick=args.quick))
        except (NotMeasured, TwokeyError) as error:
            print(f"{name} could not be measured: {error}", file=sys.stderr)
            return 1
        print(table(figure), flush=True)
        figures[name] = figure.as_json()
        missed += [one.name for one in figure.ratios if not one.is_reached]
    if args.json:
        found = {"machine": _machine(), "is_quick": args.quick, "figures": figures}
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if missed and not args.quick:
        print(f"Targets that were missed: {'; '.join(missed)}.", file=sys.stderr)
        return 1
    return 0


async def _measured(name: str, *, is_quick: bool) -> Figure:
    return await FIGURES[name](is_quick=is_quick)


def _machine() -> str:
    system = f"{platform.system()} {platform.machine()}"
    return f"Python {platform.python_version()}, {system}, {os.cpu_count()} processors"


if __name__ == "__main__":
    sys.exit(main())
