"""The examples of docs/testing.md pass in a stranger's project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_readme import ROOT, blocks

PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
REVIEWS, OWN_POLICY, SANDBOX = blocks("python", PAGE)
POLICY = """\
version: 1
defaults: {channel: "#refunds", tier: approve, needs: finance}
roles: {finance: {users: [U0MAYA]}}
"""

pytestmark = pytest.mark.slow


def passed(folder: Path, **files: str) -> str:
    """Run pytest, with its default settings, on test modules in an empty folder."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    # Warnings are errors to Keyturn's own tests; so they are here.
    words = [sys.executable, "-W", "error::DeprecationWarning:keyturn", "-m", "pytest"]
    shown = subprocess.run(
        [*words, "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env=env | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


def test_the_examples_pass_with_the_defaults_of_pytest(tmp_path: Path) -> None:
    shown = passed(tmp_path, test_refund=REVIEWS, test_bot=SANDBOX)

    assert "3 passed" in shown


def test_a_test_fails_where_the_tool_runs_without_the_gate(tmp_path: Path) -> None:
    ungated = REVIEWS.replace("[guarded(refund)]", "[refund]").replace(
        'middleware=[ApprovalMiddleware("agent")]', ""
    )

    with pytest.raises(AssertionError, match="2 failed"):
        passed(tmp_path, test_refund=ungated.replace("card()", "card(timeout_s=1)"))


def test_the_policy_of_the_project_decides_who_is_asked(tmp_path: Path) -> None:
    (tmp_path / "policy.yml").write_text(POLICY, encoding="utf-8")
    asked = REVIEWS.replace("card()", 'card(to="U0MAYA")')

    shown = passed(tmp_path, conftest=OWN_POLICY, test_refund=asked)

    assert "2 passed" in shown
