"""Run the product under random faults: ``python -m tests.chaos --minutes 10 --seed 7``.

Two gateways, two bots, a store, Postgres and the sandbox run as separate processes. It
prints the faults, the command to repeat them, and the findings. It ends with 1 when a
promise broke, and with 2 when there is no Postgres.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Plan, run
from tests.resume.postgres_server import NoPostgres


def main() -> int:
    """Read the arguments, run, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(100_000))
    parser.add_argument("--keep", type=Path, help="folder for logs and data")
    given = parser.parse_args()
    seconds = given.seconds or given.minutes * 60 or 600.0
    folder = given.keep or Path(tempfile.mkdtemp(prefix="tk-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = asyncio.run(run(Plan(seconds, given.seed), folder, _say))
    except NoPostgres as missing:
        _say(str(missing))
        return 2
    _say(f"counts: {found.counts}")
    for line in found.wrong:
        _say(f"WRONG: {line}")
    _say(f"logs: {folder}")
    _say("Every promise was kept." if not found.wrong else "A promise was broken.")
    return 1 if found.wrong else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
