"""Record the operations of many processes, and check them.

``python -m tests.linearizability --operations 100000`` uses a separate server. It ends
with 1 when no order explains the recording.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from tests.linearizability.approval_model import ApprovalModel
from tests.linearizability.checker import violations
from tests.linearizability.history import Operation, by_key
from tests.linearizability.recording import PROCESSES, record, with_time


def main() -> int:
    """Record, check, and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.linearizability", description=__doc__
    )
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--redis", help="use this server, whose data is added to")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tk-lin-"))
    began = time.monotonic()
    if given.redis:
        every = _recorded(given.redis, folder, given.operations, given.seed)
    else:
        with EmbeddedEngine(folder / "store") as engine:
            every = _recorded(engine.url, folder, given.operations, given.seed)
    recorded = time.monotonic()
    wrong = violations(with_time(every), ApprovalModel())
    checked = time.monotonic()
    for one in wrong:
        _say(str(one))
    names = Counter(one.name for one in every)
    _say(f"{len(every)} operations of {PROCESSES} processes on {len(by_key(every))} "
         f"approvals: {dict(names)}")  # fmt: skip
    _say(f"recorded in {recorded - began:.1f} s, checked in {checked - recorded:.1f} s")
    _say(f"{len(wrong)} approvals are not linearizable" if wrong else "linearizable")
    return 1 if wrong else 0


def _recorded(url: str, folder: Path, operations: int, seed: int) -> list[Operation]:
    return asyncio.run(record(url, folder, operations=operations, seed=seed))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
