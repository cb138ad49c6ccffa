"""Make names the Python that it needs, before it installs anything with another one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLD = "#!/bin/sh\nexit 1\n"
# `$IS_OLDER` decides whether it is older than 3.15.
WITHOUT_WHEELS = """#!/bin/sh
case "$*" in
  *venv*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *pip*) echo "error: command 'gcc' failed"; exit 1 ;;
  *15*) exit $IS_OLDER ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with what the rule of an installation depends on."""
    (tmp_path / "requirements").mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements/run.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def program(path: Path, text: str) -> Path:
    """Write a program that replaces Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def make_demo(folder: Path, python: Path | str) -> tuple[int, str]:
    done = subprocess.run(
        ["make", "demo", f"PYTHON={python}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_an_old_python_is_refused_and_nothing_is_installed(clone: Path) -> None:
    code, told = make_demo(clone, program(clone / "old", OLD))

    assert code != 0
    assert "older than Python 3.11; name another one: make demo PYTHON=" in told
    assert "Installing" not in told
    assert not (clone / ".venv").exists()


def test_a_python_that_is_missing_is_said(clone: Path) -> None:
    assert "is missing, or older than Python 3.11" in make_demo(clone, "nowhere")[1]


def test_an_environment_with_an_old_python_is_to_be_removed(clone: Path) -> None:
    program(clone / ".venv" / "bin" / "python", OLD)

    code, told = make_demo(clone, sys.executable)

    assert code != 0
    assert "remove it first: make clean" in told


@pytest.mark.parametrize("is_older", [False, True])
def test_who_has_a_python_that_is_too_new_for_a_package_reads_what_to_do(
    clone: Path, monkeypatch: pytest.MonkeyPatch, *, is_older: bool
) -> None:
    monkeypatch.setenv("IS_OLDER", str(int(is_older)))

    code, told = make_demo(clone, program(clone / "new", WITHOUT_WHEELS))

    assert code != 0
    assert "command 'gcc' failed" in told
    assert ("make clean; make demo PYTHON=python3.14." in told) is not is_older
    assert not (clone / ".venv" / ".run").exists()
