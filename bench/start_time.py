"""Measure the import times that every user waits for.

Keyturn's share of `import keyturn.agent` is the time that Python spends in the
product's modules themselves, without the libraries that they import.
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

from bench.stats import Figure, NotMeasured, result
from bench.world import in_turns

_AGENT = [sys.executable, "-X", "importtime", "-c", "import keyturn.agent"]
_PROGRAM = [sys.executable, "-c", "from keyturn import Keyturn"]
_HELP = [sys.executable, "-m", "keyturn", "--help"]


async def measure(*, is_quick: bool = False) -> Figure:
    """Start each command alternately."""
    rounds = 1 if is_quick else 7
    ways = {
        "own share": partial(_own_s),
        "Keyturn": partial(_timed, _PROGRAM),
        "--help": partial(_timed, _HELP),
    }
    # The first start of each writes Python's bytecode cache.
    own, program, shown = await in_turns(ways, rounds, unit="s")
    return Figure(
        "Import and start",
        f"{rounds} processes each, in turns.",
        (own, program, shown),
        (
            result("import keyturn.agent, Keyturn's own share", own, at_most=0.2),
            result("from keyturn import Keyturn", program, at_most=2.0),
            result("keyturn --help", shown, at_most=0.5),
        ),
    )


async def _own_s(_: str) -> float:
    own_us = 0
    for line in _run(_AGENT).stderr.splitlines():
        # The format of a line: import time: self [us] | cumulative | imported package.
        columns = line.partition(":")[2].split("|")
        if len(columns) == 3 and columns[2].strip().startswith("keyturn"):
            own_us += int(columns[0])
    if not own_us:
        raise NotMeasured("Python printed no import times.")
    return own_us / 1e6


async def _timed(command: list[str], _: str) -> float:
    began = time.perf_counter()
    _run(command)
    return time.perf_counter() - began


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasured(f"{command!r} ended with {done.returncode}: {done.stderr}")
    return done
