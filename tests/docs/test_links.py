"""Every link in the docs works, and every picture exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
ROOT_PAGES = sorted(ROOT.glob("*.md"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    counts: Counter[str] = Counter()
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return found


@pytest.mark.parametrize("page", [*ROOT_PAGES, *PAGES], ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    links = re.findall(r"\]\(([^)#:\s]+?)(?:#[^)]*)?\)", text)

    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [*ROOT_PAGES, *PAGES], ids=lambda page: page.name)
def test_every_heading_that_a_page_links_to_is_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text("utf-8"))

    linked = [
        ((page.parent / file) if file else page, anchor) for file, anchor in links
    ]

    assert [
        (file.name, anchor)
        for file, anchor in linked
        if file.suffix == ".md" and anchor not in anchors(file)
    ] == []


def test_every_picture_is_shown_somewhere() -> None:
    shown = "".join(
        page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *PAGES)
    )

    pictures = [path.name for path in (ROOT / "docs" / "img").glob("*-light.png")]

    assert pictures
    assert [name for name in pictures if name not in shown] == []


def test_the_architecture_names_at_most_five_files_for_a_change_and_all_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = text.partition("| I want to")[2].splitlines()[2:]

    named = [re.findall(r"`([\w/]+(?:\.\w+)?)`", row) for row in rows if row]

    assert named
    assert [file for row in named for file in row if not (ROOT / file).exists()] == []
    assert max(map(len, named)) <= 5
