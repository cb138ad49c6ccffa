"""The commands and the policy of docs/coding-agents.md do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from keyturn.connect.claude_settings import problems
from keyturn.connect.coding_agents import MARGIN_S, TIMEOUT_S
from keyturn.connect.hooks import REPEATED_WITHIN
from tests.cli.conftest import Shell
from tests.docs.test_readme import ROOT

PAGE = (ROOT / "docs" / "coding-agents.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^keyturn (.*?)(?: >>? \S+)?$", PAGE, re.MULTILINE)


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """Give a shell in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)


@pytest.mark.parametrize(
    "line", [one for one in COMMANDS if one.startswith("hooks claude")]
)
def test_the_doctor_accepts_the_page(shell: Shell, tmp_path: Path, line: str) -> None:
    printed = shell.said(*line.split())
    if "--policy" in line:
        file = tmp_path / "policy.yml"
        file.write_text(printed)
        assert "The policy is valid" in shell.said("policy", "check", str(file))
        return
    file = tmp_path / "settings.json"
    file.write_text(printed)

    assert problems(json.loads(printed)) == []
    assert "asks about every call" in shell.said(
        "doctor", "--claude-settings", str(file)
    )


def test_settings_that_fail_open_are_refused(shell: Shell, tmp_path: Path) -> None:
    settings = json.loads(shell.said("hooks", "claude-code"))
    del settings["hooks"]["PreToolUse"][0]["hooks"][0]["onFailure"]
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(settings))

    code, out, _ = shell("doctor", "--claude-settings", str(file), "--json")

    assert code == 1
    assert "onFailure" in json.loads(out)["checks"][0]["text"]


def test_an_unreadable_file_is_named(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text("{")

    code, _, err = shell("doctor", "--claude-settings", str(file))

    assert code == 2
    assert "settings.json" in err


def test_each_command_of_the_page_exists(shell: Shell) -> None:
    assert len(COMMANDS) >= 5
    for line in COMMANDS:
        words = [word for word in line.split() if not word.startswith("-")][:2]
        assert shell.said(*words, "--help")


def test_the_calls_have_the_tiers_that_it_names(shell: Shell, tmp_path: Path) -> None:
    files = re.compile(r"^```json (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    calls = dict(files.findall(PAGE))
    console = re.findall(r"--call (\S+) .*\n(tier .*)", PAGE)
    policy = tmp_path / "policy.yml"
    policy.write_text(shell.said("hooks", "codex", "--policy"))

    assert len(console) == len(calls) == 2
    for name, first in console:
        (tmp_path / name).write_text(calls[name])
        said = shell.said(
            "policy", "explain", str(policy), "--call", str(tmp_path / name)
        )
        assert said.splitlines()[0] == first


def test_the_times_are_those_that_it_names() -> None:
    assert f"after {TIMEOUT_S - MARGIN_S:.0f} seconds" in PAGE
    assert REPEATED_WITHIN.total_seconds() == 600
    assert "for ten minutes" in PAGE
