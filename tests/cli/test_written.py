"""What a command writes is where it belongs: in its streams, and in whole files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keyturn.cli import console
from keyturn.cli.main import USAGE
from keyturn.gateway.errors import SettingsError

COUNTS = """
import os, subprocess, sys
from keyturn import __main__ as program

def to_nothing(**_):
    there = os.stat(os.devnull)
    child = "import os; [os.fstat(number) for number in range(3)]"
    subprocess.run([sys.executable, "-c", child], check=True)
    return 10 + sum(os.path.samestat(os.fstat(n), there) for n in range(3))

program.run = to_nothing
program.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "to_nothing"), [("<&- >&- 2>&-", 3), ("2>&-", 1)])
def test_a_stream_that_is_closed_is_no_file_that_is_opened_later(
    closed: str, to_nothing: int
) -> None:
    # Output to descriptor 2 would otherwise go into a file or a connection that was
    # opened under that number.
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, COUNTS],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )

    assert ended.returncode == 10 + to_nothing, ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has such a file")
def test_output_that_finds_no_room_is_a_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "keyturn", "manifest"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert ended.returncode == USAGE
    assert ended.stderr == (
        "The disk in use is full (No space left on device). Make room on "
        "it, then run the command again.\n"
    )


def test_a_file_is_on_the_disk_before_it_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)

    with (
        pytest.raises(SettingsError, match=r"cannot be written: Input/output error\."),
        console.new_file(tmp_path / "bundle.jsonl") as file,
    ):
        file.write(b"entries")

    assert [*tmp_path.iterdir()] == []
