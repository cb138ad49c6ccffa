"""The page is plain files that parse no markup and load nothing from elsewhere."""

import re
from pathlib import Path

import pytest

from keyturn.sandbox.page_api import PAGE

SCRIPTS = sorted(PAGE.glob("*.js"))
FILES = sorted(path for path in PAGE.iterdir() if path.is_file())

PARSES_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|"
    r"createContextualFragment|setHTML|srcdoc|\beval\b|new Function|javascript:"
)
LOADS = re.compile(r"""(?:src|href|url|import|fetch)\s*[(=]?\s*["'(](https?:)?//""")


def by_name(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("script", SCRIPTS, ids=by_name)
def test_no_script_parses_markup_or_runs_text(script: Path) -> None:
    assert PARSES_MARKUP.findall(script.read_text()) == []


@pytest.mark.parametrize("file", FILES, ids=by_name)
def test_nothing_is_loaded_from_elsewhere(file: Path) -> None:
    assert LOADS.findall(file.read_text()) == []


def test_the_index_has_no_inline_script_or_style() -> None:
    index = (PAGE / "index.html").read_text()

    assert re.findall(r"<script(?![^>]*\bsrc=)", index) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", index) == []


def test_every_file_of_the_page_is_used() -> None:
    text = "".join(path.read_text() for path in FILES)

    unused = [path.name for path in FILES if f"/{path.name}" not in text]

    assert unused == ["index.html"]
