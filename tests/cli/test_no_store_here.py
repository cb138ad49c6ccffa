"""A command in a wrong folder, or without settings, explains it and creates nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from keyturn.cli import main
from keyturn.cli.main import UNEXPECTED, run
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "words",
    [
        ["freeze", "everything"],
        ["frozen"],
        ["jobs", "list"],
        ["outbox", "list"],
        ["security"],
        ["stats"],
        ["audit", "export"],
        ["erase", "U0DAN", "--yes"],
        ["api-keys", "list"],
        ["repair"],
        ["repair", "--new-checkpoints"],
    ],
    ids=" ".join,
)
def test_a_command_does_not_answer_for_a_store_that_it_would_have_made(
    shell: Shell, words: list[str]
) -> None:
    told = shell.refused(*words)

    assert f"there is no store in '{shell.folder / '.keyturn'}'" in told
    assert "--config" in told
    assert list(shell.folder.iterdir()) == []


def test_the_settings_of_the_service_have_to_be_given(shell: Shell) -> None:
    config = shell.write("policy: {version: 1}\n")
    kept = shell.folder / "kept"
    kept.mkdir()

    told = shell.refused("--config", str(config), "freeze", "everything")
    elsewhere = shell.refused("frozen", KEYTURN_DATA_DIR="kept")

    assert "KEYTURN_REDIS_URL and KEYTURN_SECRET" in told
    assert str(kept) in elsewhere
    assert list(kept.iterdir()) == []


def test_what_runs_or_ran_there_is_asked(shell: Shell) -> None:
    shell("api-keys", "create", "billing", "--agent", "billing")

    told = shell.said("frozen")

    assert told == "✔ Nothing is frozen, and no agent is paused.\n"


def test_the_doctor_makes_nothing_where_nothing_of_keyturn_is(shell: Shell) -> None:
    code, told, _ = shell("doctor")

    assert code == 1
    assert f"· store: skipped: '{shell.folder}' contains no files of Keyturn" in told
    assert "✖ Slack secrets" in told
    assert list(shell.folder.iterdir()) == []


def test_the_doctor_says_which_settings_it_read(shell: Shell) -> None:
    shell.write("version: 1\n", "policy.yml")
    without = shell("doctor").out
    config = shell.write("tenant: shop\n")

    assert f"no 'keyturn.yml' in '{shell.folder}'; tenant default" in without
    assert f"✔ settings: '{config}'; tenant shop" in shell("doctor").out


def test_a_folder_that_cannot_be_looked_into_is_named(shell: Shell) -> None:
    shell.write("a file, where a folder is needed", ".keyturn")

    told = shell.refused("frozen", KEYTURN_SECRET="ab" * 32)

    assert "cannot be used (Not a directory)" in told


@pytest.mark.slow
def test_a_user_without_a_home_folder_can_start_it(tmp_path: Path) -> None:
    script = tmp_path / "started.py"
    script.write_text(
        "import pwd, sys\n"
        "def nobody(uid):\n"
        "    raise KeyError(uid)\n"
        "pwd.getpwuid = nobody\n"
        "import keyturn.__main__\n"
        "sys.argv[1:] = ['run', '--help']\n"
        "keyturn.__main__.main()\n",
        encoding="utf-8",
    )

    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src")},
    )

    assert done.stderr == ""
    assert "Run gateway, agents and bot" in done.stdout


def test_debug_shows_also_what_keeps_a_command_from_being_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("a module that cannot be imported")

    monkeypatch.setattr(main, "_commands", broken)

    assert run(["frozen"], {}) == UNEXPECTED
    with pytest.raises(RuntimeError, match="cannot be imported"):
        run(["--debug", "frozen"], {})
