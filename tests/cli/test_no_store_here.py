"""A command in a wrong folder, or without settings, explains it and creates nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keyturn.cli import main
from keyturn.cli.main import UNEXPECTED, USAGE, run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    monkeypatch.chdir(tmp_path)

    def told(*words: str, **env: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run(words, env)
        return code, "".join(capsys.readouterr())

    return told


@pytest.mark.parametrize(
    "words",
    [
        ["freeze", "everything"],
        ["unfreeze", "everything"],
        ["frozen"],
        ["jobs", "list"],
        ["outbox", "list"],
        ["security"],
        ["stats"],
        ["audit", "export"],
        ["audit", "verify"],
        ["erase", "U0DAN", "--yes"],
        ["api-keys", "list"],
        ["api-keys", "revoke", "3f9a0c77d1e2b845"],
        ["repair"],
        ["repair", "--new-checkpoints"],
        ["repair", "--new-tree"],
    ],
    ids=" ".join,
)
def test_a_command_does_not_answer_for_a_store_that_it_would_have_made(
    tmp_path: Path, tell: Any, words: list[str]
) -> None:
    code, told = tell(*words)

    assert code == USAGE
    assert f"there is no store in '{tmp_path / '.keyturn'}'" in told
    assert "--config" in told
    assert list(tmp_path.iterdir()) == []


def test_the_settings_of_the_service_have_to_be_given(
    tmp_path: Path, tell: Any
) -> None:
    config = tmp_path / "keyturn.yml"
    config.write_text("policy: {version: 1}\n", encoding="utf-8")
    (tmp_path / "kept").mkdir()

    code, told = tell("--config", str(config), "freeze", "everything")
    other, elsewhere = tell("frozen", KEYTURN_DATA_DIR="kept")

    assert (code, other) == (USAGE, USAGE)
    assert "KEYTURN_REDIS_URL and KEYTURN_SECRET" in told
    assert str(tmp_path / "kept") in elsewhere
    assert list((tmp_path / "kept").iterdir()) == []


def test_what_runs_or_ran_there_is_asked(tell: Any) -> None:
    tell("api-keys", "create", "billing", "--agent", "billing")

    code, told = tell("frozen")

    assert (code, told) == (0, "✔ Nothing is frozen, and no agent is paused.\n")


def test_the_doctor_makes_nothing_where_nothing_of_keyturn_is(
    tmp_path: Path, tell: Any
) -> None:
    code, told = tell("doctor")

    assert code == 1
    assert f"· store: skipped: '{tmp_path}' contains no files of Keyturn" in told
    assert "✖ Slack secrets" in told
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_says_which_settings_it_read(tmp_path: Path, tell: Any) -> None:
    (tmp_path / "policy.yml").write_text("version: 1\n", encoding="utf-8")

    _, without = tell("doctor")
    (tmp_path / "keyturn.yml").write_text("tenant: shop\n", encoding="utf-8")
    _, told = tell("doctor")

    assert f"there is no 'keyturn.yml' in '{tmp_path}'; tenant default" in without
    assert f"✔ settings: '{tmp_path / 'keyturn.yml'}'; tenant shop" in told


def test_a_folder_that_cannot_be_looked_into_is_named(
    tmp_path: Path, tell: Any
) -> None:
    (tmp_path / ".keyturn").write_text("a file, where a folder is needed")

    code, told = tell("frozen", KEYTURN_SECRET="ab" * 32)

    assert code == USAGE
    assert "cannot be used (Not a directory)" in told


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
