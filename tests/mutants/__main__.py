"""Break the core in every way of the table, and see that a test notices.

Runs on a copy of the tree: ``python -m tests.mutants [WORDS OF A PROMISE]``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.table import TABLE

ROOT = Path(__file__).parents[2]


def survives(mutant: Mutant, tree: Path) -> bool:
    """Say whether the tests pass although the code is broken."""
    path = tree / mutant.path
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.before) != 1:
        raise SystemExit(f"{mutant.path} no longer holds {mutant.before!r} once.")
    path.write_text(source.replace(mutant.before, mutant.after), encoding="utf-8")
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
             *mutant.tests.split()],
            cwd=tree, check=False, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        path.write_text(source, encoding="utf-8")
    if run.returncode > 1:
        raise SystemExit(f"The tests did not run:\n{run.stdout[-2000:]}{run.stderr}")
    return run.returncode == 0


def main() -> int:
    """Run the table; return how many mutants nobody noticed."""
    wanted = " ".join(sys.argv[1:])
    chosen = [mutant for mutant in TABLE if wanted in mutant.promise]
    with tempfile.TemporaryDirectory(prefix="tk-mutants-") as folder:
        tree = Path(folder) / "tree"
        ignore = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=ignore)
        missed = [mutant for mutant in chosen if report(mutant, tree)]
    sys.stdout.write(f"{len(chosen) - len(missed)} of {len(chosen)} noticed\n")
    return len(missed)


def report(mutant: Mutant, tree: Path) -> bool:
    """Run one mutant and print a line about it."""
    is_missed = survives(mutant, tree)
    word = "MISSED " if is_missed else "noticed"
    sys.stdout.write(f"{word}  {mutant.promise}  ({mutant.path})\n")
    sys.stdout.flush()
    return is_missed


if __name__ == "__main__":
    sys.exit(main())
