"""Each row of the security pages names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("SECURITY.md", "docs/aisvs.md")


@pytest.mark.parametrize("name", PAGES)
def test_each_row_names_a_test_that_is_there(name: str) -> None:
    page = ROOT / name
    rows = [
        line
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.endswith("| Test |")
    ]

    missing: list[str] = []
    for row in rows:
        link = re.search(r"\| \[([^\]]+)\]\(([^)#]+)\) \|$", row)
        file = page.parent / link.group(2) if link else page
        test = f"def test_{link.group(1).replace(' ', '_')}(" if link else ""
        if not (test and file.is_file() and test in file.read_text(encoding="utf-8")):
            missing.append(row)

    assert [row for row in missing if not row.startswith("| ---")] == []
    assert rows
