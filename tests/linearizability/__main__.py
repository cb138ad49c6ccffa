"""Record the operations of many processes, and check them.

``python -m tests.linearizability --operations 100000`` uses a separate server. With
``--kills 10000`` people click that many approvals while masters, replicas, Sentinels,
bots and gateways are killed, and each approval is accounted for; SIGUSR1 ends it early.
``--kept FOLDER`` checks the files of such a run again. It ends with 1 when no order
explains the recording, or when an approved call did not run without an explanation.
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
from tests.linearizability import kills
from tests.linearizability.approval_model import ApprovalModel
from tests.linearizability.audited import contradictions, timelines
from tests.linearizability.checker import violations
from tests.linearizability.click_model import ClickModel
from tests.linearizability.history import Operation, by_key
from tests.linearizability.reconciliation import reconciled, report, unexplained
from tests.linearizability.recorded import Recorded, kept
from tests.linearizability.recording import PROCESSES, record, with_time


def main() -> int:
    """Record, check, and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.linearizability", description=__doc__
    )
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--redis", help="use this server, whose data is added to")
    parser.add_argument("--kills", type=int, help="decide so often under kill -9")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kept", type=Path, help="check what is in this folder")
    given = parser.parse_args()
    if given.kept:
        return _checked(kept(given.kept))
    if given.kills:
        return _killed(given.kills, given.minutes * 60)
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


def _killed(decisions: int, within_s: float) -> int:
    folder, began = Path(tempfile.mkdtemp(prefix="tk-kills-")), time.monotonic()
    _say(f"logs: {folder}")
    found = asyncio.run(
        kills.record(folder, decisions=decisions, within_s=within_s, say=_say)
    )
    _say(f"recorded in {time.monotonic() - began:.1f} s")
    return _checked(found)


def _checked(found: Recorded) -> int:
    """Check people's clicks and account for their results."""
    began = time.monotonic()
    wrong = violations(found.history, ClickModel())
    for one in wrong:
        _say(str(one))
    _say(f"{len(found.threads)} approvals under kill -9 of {found.killed}")
    names = Counter(f"{one.name} {one.output}" for one in found.history)
    _say(f"{len(found.history)} operations: {dict(names)}")
    _say(f"checked in {time.monotonic() - began:.1f} s")
    _say(f"{len(wrong)} approvals are not linearizable" if wrong else "linearizable")
    accounts = reconciled(found.history, found.threads)
    for line in report(accounts, timelines(found.moments, found.deaths)):
        _say(line)
    differing = contradictions(accounts, found.moments)
    for line in differing:
        _say(line)
    return 1 if wrong or unexplained(accounts) or differing else 0


def _recorded(url: str, folder: Path, operations: int, seed: int) -> list[Operation]:
    return asyncio.run(record(url, folder, operations=operations, seed=seed))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
