"""Break the core in every way of the table, and see that a test notices.

Runs on copies of the tree, one for each processor:
``python -m tests.mutants [WORDS OF A PROMISE]``.
"""

from __future__ import annotations

import os
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


class DidNotRun(Exception):
    """The tests of a mutant neither passed nor failed."""


def survives(mutant: Mutant, tree: Path) -> bool:
    """Say whether the tests pass although the code is broken.

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
    return run.returncode == 0


def main() -> int:
    """Run the table; return 1 when one was not noticed or not tried."""
    wanted = " ".join(sys.argv[1:])
    chosen = [mutant for mutant in TABLE if wanted in mutant.promise]
    jobs = min(os.cpu_count() or 1, max(len(chosen), 1))
    with tempfile.TemporaryDirectory(prefix="tk-mutants-") as folder:
        trees = SimpleQueue[Path]()
        for number in range(jobs):
            trees.put(_copied(Path(folder) / f"tree{number}"))

        def is_missed(mutant: Mutant) -> bool:
            # A tree is broken in one way at a time.
            tree = trees.get()
            try:
                return report(mutant, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as threads:
            missed = [*threads.map(is_missed, chosen)].count(True)
    sys.stdout.write(f"{len(chosen) - missed} of {len(chosen)} noticed\n")
    return 1 if missed else 0


def _copied(tree: Path) -> Path:
    ignore = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache")
    return Path(shutil.copytree(ROOT, tree, symlinks=True, ignore=ignore))


def report(mutant: Mutant, tree: Path) -> bool:
    """Run one mutant and print a line about it; return whether nobody noticed it."""
    began, why = time.monotonic(), ""
    try:
        word = "MISSED " if survives(mutant, tree) else "noticed"
    except DidNotRun as error:
        # The rows after it are tried all the same: a whole run takes hours.
        word, why = "NOT RUN", f"{error}\n"
    took = f"{time.monotonic() - began:.0f} s"
    sys.stdout.write(f"{word}  {mutant.promise}  ({mutant.path}, {took})\n{why}")
    sys.stdout.flush()
    return word != "noticed"


if __name__ == "__main__":
    sys.exit(main())
