"""The site of the documentation has every page, and none of its links is broken."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from keyturn.cli.main import COMMANDS
from tests.docs.test_links import PAGES, ROOT, ROOT_PAGES

UNLISTED = {"CODE_OF_CONDUCT.md"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Return the script of the site, after it collected the pages in a new folder."""
    spec = importlib.util.spec_from_file_location(
        "pages", ROOT / "docs" / "site" / "pages.py"
    )
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    vars(script)["COLLECTED"] = tmp_path_factory.mktemp("site") / "docs"
    script.collect()
    return script


def test_the_navigation_lists_every_page_once(pages: ModuleType) -> None:
    listed = [page for _, _, page in pages.nav()]
    made = {"commands.md", "routes.md", "decisions.md", "index.md", "results.md"}
    written = {page.name for page in PAGES if page.parent.name == "docs"}
    written |= {page.name for page in ROOT_PAGES} - {"README.md"}

    assert sorted(listed) == sorted((written | made) - UNLISTED)


def test_every_link_of_the_collected_pages_leads_to_a_file(pages: ModuleType) -> None:
    folder: Path = pages.COLLECTED
    broken = [
        (page.name, link)
        for page in folder.rglob("*.md")
        for link in re.findall(r"\]\(([^)#:\s]+)[)#]", page.read_text("utf-8"))
        if not (page.parent / link).is_file()
    ]

    assert broken == []


def test_the_page_of_commands_has_the_help_of_each(pages: ModuleType) -> None:
    text = (pages.COLLECTED / "commands.md").read_text(encoding="utf-8")

    for name in COMMANDS:
        assert f"## `keyturn {name}`" in text
    assert "## `keyturn policy explain`" in text


def test_the_page_of_routes_has_those_of_the_api(pages: ModuleType) -> None:
    text = (pages.COLLECTED / "routes.md").read_text(encoding="utf-8")

    assert re.search(r"\| POST \| `/v1/\S+` \| \S", text)


def test_the_list_for_language_models_has_every_page(pages: ModuleType) -> None:
    text = pages.llms()

    assert text.startswith("# Keyturn\n\n> ")
    assert all(f"]({page})" in text for _, _, page in pages.nav())
