"""Each control on the security pages names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

from keyturn.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]


def has_test(page: Path, file: str, test: str) -> bool:
    path = page.parent / file
    return path.is_file() and f"def {test}(" in path.read_text(encoding="utf-8")


def test_each_control_names_a_test_that_is_there() -> None:
    page = ROOT / "SECURITY.md"
    text = page.read_text(encoding="utf-8")
    section = text.partition("## Threats and controls")[2].partition("\n## ")[0]
    controls = [line for line in section.splitlines() if line.startswith("- ")]

    missing: list[str] = []
    for control in controls:
        link = re.search(r" \[test\]\(([^)#]+)#(test_\w+)\)$", control)
        if not (link and has_test(page, link[1], link[2])):
            missing.append(control)

    assert controls
    assert missing == []


def test_each_row_about_aisvs_names_a_test_that_is_there() -> None:
    page = ROOT / "docs" / "aisvs.md"
    rows = [
        line
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.endswith("| Test |")
    ]

    missing: list[str] = []
    for row in rows:
        link = re.search(r"\| \[test\]\(([^)#]+)#(test_\w+)\) \|$", row)
        if not (link and has_test(page, link[1], link[2])):
            missing.append(row)

    assert [row for row in missing if not row.startswith("| ---")] == []
    assert rows


def test_each_agentic_risk_names_a_test_and_each_article_a_command() -> None:
    page = ROOT / "docs" / "standards.md"
    text = page.read_text(encoding="utf-8")
    risks = re.findall(
        r"^\| (ASI\d\d) .*\[test\]\(([^)#]+)#(test_\w+)\) \|$", text, re.MULTILINE
    )
    commands = re.findall(r"`keyturn ([\w-]+)", text)

    assert [one for one, _, _ in risks] == [f"ASI{n:02}" for n in range(1, 11)]
    assert [test for _, file, test in risks if not has_test(page, file, test)] == []
    assert {*commands} <= {*COMMANDS}
