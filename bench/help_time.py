"""Measure how long `twokey --help` takes, from the start of its process to its end."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.stats import Figure, Measured, NotMeasured, plain

TITLE = "The list of commands"

_OURS = [sys.executable, "-m", "twokey", "--help"]
_LIMIT = [sys.executable, "-c", "import typer"]


async def measure(*, is_quick: bool = False) -> Figure:
    """Start each in turns and compare them."""
    rounds = 2 if is_quick else 15
    _taken(_OURS)  # writes what Python compiles
    pairs = [(_taken(_OURS), _taken(_LIMIT)) for _ in range(rounds)]
    ours = Measured("twokey --help", "s", tuple((one,) for one, _ in pairs))
    limit = Measured("importing typer", "s", tuple((one,) for _, one in pairs))
    return Figure(
        TITLE,
        f"{rounds} processes each, in turns.",
        (ours, limit),
        (
            plain(
                "twokey --help",
                ours,
                at_most=0.5,
                limit=f"a process that only imports typer: {limit.at(0.5):.2f} s",
            ),
        ),
    )


def _taken(command: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise NotMeasured(f"{command!r} ended with {done.returncode}.")
    return time.perf_counter() - began
