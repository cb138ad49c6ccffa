"""One run of the benchmark as plain data: its figures, machine, date and commit.

`results.md`, the chart and the comparison are made from this data alone.
"""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.stats import Figure

Run = dict[str, Any]
"""``machine``, ``date``, ``commit``, ``note``, ``is_quick``, ``figures`` by name, and
``failed``: by name, why a figure could not be measured."""

_ROOT = Path(__file__).parent.parent


def new_run(*, is_quick: bool, note: str = "") -> Run:
    """Return a run without figures, of this machine and this commit."""
    now = datetime.now(UTC)  # noqa: TID251 - when it was measured
    return {
        "machine": machine(),
        "date": now.isoformat(timespec="minutes"),
        "commit": _commit(),
        "note": note,
        "is_quick": is_quick,
        "figures": {},
        "failed": {},
    }


def machine() -> str:
    """Return Python, system and processors of this machine."""
    system = f"{platform.system()} {platform.machine()}"
    processors = f"{os.cpu_count()} processors{_model()}"
    return f"Python {platform.python_version()}, {system}, {processors}"


def add(run: Run, name: str, figure: Figure) -> None:
    """Note what was measured."""
    run["figures"][name] = figure.as_json()


def without_samples(run: Run) -> Run:
    """Return a run that keeps p50 and p95 of what was measured, and no sample."""
    figures = {
        name: {
            **figure,
            "measured": [
                {key: value for key, value in one.items() if key != "rounds"}
                for one in figure["measured"]
            ],
        }
        for name, figure in run["figures"].items()
    }
    return {**run, "figures": figures}


def _model() -> str:
    """Return the processor's name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return f" ({names[0]})" if names else ""


def _commit() -> str:
    """Return the commit, with "+" behind it where files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, cwd=_ROOT
        )
        return done.stdout.strip()

    try:
        # What the benchmark itself writes is no difference of the code.
        changed = git("status", "--porcelain", "--", ".", ":!bench/results.*")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
