"""Start a Postgres of this machine in a folder, for one test session."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
"""Postgres refuses to run as root; so root's tests run it as nobody."""


def found() -> Path | None:
    """Return the folder of Postgres's programs, or None where there is no Postgres."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return packaged[-1].parent if packaged else None


@contextmanager
def running(programs: Path) -> Generator[str]:
    """Run a fresh server on a Unix socket; yields its URL."""
    folder = Path(tempfile.mkdtemp(prefix="tk-pg-"))
    who = NOBODY if os.geteuid() == 0 else None
    if who is not None:
        os.chown(folder, who, who)

    def run(*words: str) -> None:
        subprocess.run(
            words, check=True, capture_output=True, cwd=folder, user=who, group=who
        )

    data = str(folder / "data")
    control = str(programs / "pg_ctl")
    run(str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "twokey")
    options = f"-k {folder} -c listen_addresses=''"
    run(control, "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:
        yield f"postgresql://twokey@/postgres?host={folder}"
    finally:
        run(control, "-D", data, "-m", "fast", "stop")
        shutil.rmtree(folder, ignore_errors=True)
