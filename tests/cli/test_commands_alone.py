"""Each command starts with the packages that it needs, and names missing ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from keyturn.cli.main import COMMANDS, USAGE

ROOT = Path(__file__).parents[2]
WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
import keyturn.cli.main
sys.exit(keyturn.cli.main.run(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("slack_bolt,slack_sdk", "bot", "slack"),
        ("slack_bolt,slack_sdk", "run", "all"),
        ("aiohttp", "run", "all"),
        ("redis", "gateway", "server"),
        ("redis", "audit", "server"),
    ],
)
def test_what_a_command_needs_is_said_and_hides_no_other_one(
    missing: str, command: str, extra: str
) -> None:
    def run_without(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", WITHOUT, missing, *words],
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": str(ROOT / "src")},
        )

    alone, shown = run_without(command, "--some", "words"), run_without("--help")

    assert alone.returncode == USAGE
    assert f"pip install 'keyturn[{extra}]'" in alone.stderr
    assert shown.returncode == 0
    assert {name for names in COMMANDS.values() for name in names} <= {
        *shown.stdout.split()
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gateway", "--help"), "--insecure-dev"),
        (("policy", "--help"), "replay"),
        (("audit", "--help"), "verify"),
    ],
)
def test_a_gateways_commands_start_without_slack(
    words: tuple[str, ...], said: str
) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", WITHOUT, "slack_bolt,slack_sdk", *words],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )

    assert said in shown.stdout
