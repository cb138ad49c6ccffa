"""Break the core in every way of the table, and see that a test notices.

Runs on copies of the tree, one for each processor:
``python -m tests.mutants [--rows FROM-TO] [WORDS OF A PROMISE]``. A whole run takes
hours: ``--rows 392-`` goes on where an earlier one ended.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutant import Mutant
from tests.mutants.table import TABLE

ROOT = Path(__file__).parents[2]

_NOTICED_BY = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class DidNotRun(Exception):
    """The tests of a mutant neither passed nor failed."""


def noticed_by(mutant: Mutant, tree: Path) -> str:
    """Return the test that fails as the code is broken; "" when all of them pass.

    Raises:
        DidNotRun: when that cannot be said.
    """
    path = tree / mutant.path
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.before) != 1:
        raise DidNotRun(f"{mutant.path} no longer holds {mutant.before!r} once.")
    path.write_text(source.replace(mutant.before, mutant.after), encoding="utf-8")
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
             *mutant.tests.split()],
            cwd=tree, check=False, capture_output=True, text=True,
            # Processes that a test starts run the broken code, too.
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
        )  # fmt: skip
    finally:
        path.write_text(source, encoding="utf-8")
    if run.returncode > 1:
        raise DidNotRun(f"The tests did not run:\n{run.stdout[-2000:]}{run.stderr}")
    if run.returncode == 0:
        return ""
    found = _NOTICED_BY.search(run.stdout)
    return found[1] if found else "pytest"


def main() -> int:
    """Run the table; return 1 when one was not noticed or not tried."""
    given = _arguments().parse_args()
    wanted = " ".join(given.words)
    chosen = [
        (number, mutant)
        for number, mutant in enumerate(TABLE, start=1)
        if wanted in mutant.promise and number in given.rows
    ]
    jobs = min(os.cpu_count() or 1, max(len(chosen), 1))
    with tempfile.TemporaryDirectory(prefix="tk-mutants-") as folder:
        trees = SimpleQueue[Path]()
        for number in range(jobs):
            trees.put(_copied(Path(folder) / f"tree{number}"))

        def is_missed(row: tuple[int, Mutant]) -> bool:
            # A tree is broken in one way at a time.
            tree = trees.get()
            try:
                return report(*row, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as threads:
            missed = [*threads.map(is_missed, chosen)].count(True)
    sys.stdout.write(f"{len(chosen) - missed} of {len(chosen)} noticed\n")
    return 1 if missed else 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Break the core in every listed way; a test has to notice each.",
    )
    parser.add_argument(
        "--rows",
        type=_rows,
        default=range(1, len(TABLE) + 1),
        metavar="FROM-TO",
        help="only these rows, such as 7, 392-400 or 392-; the first is 1",
    )
    parser.add_argument("words", nargs="*", help="only rows with this in their promise")
    return parser


def _rows(text: str) -> range:
    first, dash, last = text.partition("-")
    if not dash:
        last = first
    return range(int(first), int(last or len(TABLE)) + 1)


def _copied(tree: Path) -> Path:
    ignore = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache")
    return Path(shutil.copytree(ROOT, tree, symlinks=True, ignore=ignore))


def report(number: int, mutant: Mutant, tree: Path) -> bool:
    """Run one mutant and print a line about it; return whether nobody noticed it."""
    began, why = time.monotonic(), ""
    try:
        # Which test it is, so that one that fails for another reason is seen.
        why = noticed_by(mutant, tree)
        word = "noticed" if why else "MISSED "
    except DidNotRun as error:
        # The rows after it are tried all the same: a whole run takes hours.
        word, why = "NOT RUN", str(error)
    took = f"{time.monotonic() - began:.0f} s"
    line = f"{number} {word}  {mutant.promise}  ({mutant.path}, {took}) {why}"
    sys.stdout.write(f"{line.rstrip()}\n")
    sys.stdout.flush()
    return word != "noticed"


if __name__ == "__main__":
    sys.exit(main())
