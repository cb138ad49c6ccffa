"""A forked process is like any other: a separate environment, a separate end."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.forked import Forked

SAYS = """
import json, os, sys, time
told = [os.getcwd(), sys.argv[1:], dict(os.environ), "keyturn.cli.demo" in sys.modules]
print(json.dumps(told))
print("an error", file=sys.stderr)
if "waits" in sys.argv:
    time.sleep(600)
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "says.py").write_text(SAYS, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return "says"


def test_it_has_its_words_folder_and_variables_and_loads_nothing_anew(
    program: str, tmp_path: Path
) -> None:
    started = Forked(program, "a", "b", cwd=tmp_path, env={"ONE": "1"})

    folder, words, variables, is_loaded = json.loads(started.stdout.read())

    assert (folder, words, variables) == (str(tmp_path), ["a", "b"], {"ONE": "1"})
    assert is_loaded
    assert started.wait() == 3


def test_it_writes_its_errors_to_its_output_where_these_are_merged(
    program: str,
) -> None:
    started = Forked(program, merged=True)

    assert started.stdout.read().endswith("an error\n")
    started.wait()


def test_it_is_killed_as_any_process(program: str) -> None:
    started = Forked(program, "waits")
    started.stdout.readline()

    assert started.returncode is None
    assert started.pid != os.getpid()
    with pytest.raises(TimeoutError, match="runs still"):
        started.wait(0)
    started.send_signal(signal.SIGKILL)

    assert started.wait() == -signal.SIGKILL
    started.send_signal(signal.SIGKILL)
