"""Collect the pages of the site, and finish the site that was made of them.

`make docs` runs ``pages.py collect`` before Zensical and ``pages.py finish`` after it.
"""

# ruff: noqa: INP001 - a script, not a package

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from keyturn.cli.main import COMMANDS, commands
from keyturn.gateway.api import operations

ROOT = Path(__file__).parents[2]
COLLECTED, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
_CONFIG = Path(__file__).with_name("zensical.toml")
CONFIG = tomllib.loads(_CONFIG.read_text(encoding="utf-8"))

FILES = "files"
"""Folder of the site for other files of the project that pages link to."""

_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
_FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
"""A block of code that names its file, which the site shows as its title."""

_COLUMNS = "100"


def collect() -> None:
    """Copy and make all pages into a new folder."""
    shutil.rmtree(COLLECTED, ignore_errors=True)
    for source, page in sources().items():
        _write(page, _linked(source, (ROOT / source).read_text(encoding="utf-8")))
    shutil.copytree(ROOT / "docs" / "img", COLLECTED / "img")
    shutil.copy(_CONFIG, COLLECTED.parent)
    _write("commands.md", commands_page())
    _write("decisions.md", _decisions())
    _write("routes.md", routes_page())


def sources() -> dict[str, str]:
    """Return the project's pages: the place of each in the project and in the site."""
    found = {page.name: page.name for page in ROOT.glob("*.md")}
    found["README.md"] = "index.md"
    found["bench/results.md"] = "results.md"
    docs = ROOT / "docs"
    for page in sorted([*docs.glob("*.md"), *docs.glob("decisions/*.md")]):
        found[str(page.relative_to(ROOT))] = str(page.relative_to(docs))
    return found


def finish() -> None:
    """Put each page beside its Markdown, and add the list for language models."""
    for page in COLLECTED.rglob("*.md"):
        shutil.copy(page, SITE / page.relative_to(COLLECTED))
    (SITE / "llms.txt").write_text(llms(), encoding="utf-8")


def nav() -> Iterator[tuple[str, str, str]]:
    """Yield section, title and file of each page in the site's navigation."""
    entries = cast("list[dict[str, Any]]", CONFIG["project"]["nav"])
    for entry in entries:
        for section, pages in entry.items():
            rows = [{section: pages}] if isinstance(pages, str) else pages
            for row in cast("list[dict[str, str]]", rows):
                yield from ((section, title, page) for title, page in row.items())


def commands_page() -> str:
    """Return a page with the help of every command."""
    # Every command named: only modules of named commands are imported.
    os.environ |= {"COLUMNS": _COLUMNS, "TERMINAL_WIDTH": _COLUMNS}
    top = get_command(commands([*COMMANDS]))
    rows = [
        "# Commands",
        "The help of each command, as `keyturn NAME --help` prints it.",
    ]
    for context in _contexts(typer.Context(top, info_name="keyturn")):
        name = context.command_path
        rows += [f"## `{name}`", f"```text\n{context.command.get_help(context)}\n```"]
    return "\n\n".join(rows) + "\n"


def routes_page() -> str:
    """Return a page with every route of the HTTP API, from its OpenAPI document."""
    rows = [
        "# Routes of the HTTP API\n",
        "[The guide](http-api.md) explains keys, scopes and errors. `/v1/openapi.json`",
        "of a gateway has all fields.\n",
        "| Method | Path | Meaning |",
        "|---|---|---|",
    ]
    for path, methods in json.loads(operations.document())["paths"].items():
        for method, about in methods.items():
            rows.append(f"| {method.upper()} | `{path}` | {about['summary']} |")
    return "\n".join([*rows, ""])


def _contexts(context: typer.Context) -> Iterator[typer.Context]:
    yield context
    if isinstance(context.command, TyperGroup):
        for name, command in context.command.commands.items():
            if not command.hidden:
                yield from _contexts(typer.Context(command, context, info_name=name))


def _linked(source: str, text: str) -> str:
    """Return a page whose links fit the site; copies the files that it links to."""
    pages, folder = sources(), posixpath.dirname(source)
    own = posixpath.dirname(pages[source])

    def replaced(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        if target == "docs/decisions":
            place = "decisions.md"
        elif target.startswith("docs/img/"):
            place = target.removeprefix("docs/")
        elif target in pages:
            place = pages[target]
        else:
            place = _copied(target)
        return posixpath.relpath(place, own or ".")

    return _FENCE.sub(r'```\1 title="\2"', _LINK.sub(replaced, text))


def _copied(target: str) -> str:
    """Copy a file into the site, or a page that lists a folder; return its place."""
    source, place = ROOT / target, f"{FILES}/{target}"
    if source.is_dir():
        files = _in_git(source)
        links = [f"- [{one.name}]({one.name}.txt)" for one in files]
        for one in files:
            _copied(f"{target}/{one.name}")
        _write(f"{place}/index.md", "\n".join([f"# {target}", "", *links, ""]))
        return f"{place}/index.md"
    # Browsers show text in place. They would download a file of an unknown type.
    place += ".txt"
    _write(place, source.read_text(encoding="utf-8"))
    return place


def _in_git(folder: Path) -> list[Path]:
    """Return the files of a folder that Git has; others may contain secrets."""
    words = ("git", "ls-files", "-z", ".")
    listed = subprocess.check_output(words, cwd=folder, text=True)  # noqa: S603 - fixed words
    return [folder / one for one in listed.split("\0") if one and "/" not in one]


def _decisions() -> str:
    rows = ["# Decisions", ""]
    for source, page in sources().items():
        if source.startswith("docs/decisions/"):
            title = (ROOT / source).read_text("utf-8").partition("\n")[0].lstrip("# ")
            rows.append(f"- [{title}]({page})")
    return "\n".join([*rows, ""])


def llms() -> str:
    """Return the list of all pages; see https://llmstxt.org."""
    project = CONFIG["project"]
    rows = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    section = ""
    for group, title, page in nav():
        if group != section:
            section = group
            rows += ["", f"## {section}", ""]
        rows.append(f"- [{title}]({page})")
    return "\n".join([*rows, ""])


def _write(page: str, text: str) -> None:
    path = COLLECTED / page
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    {"collect": collect, "finish": finish}[sys.argv[1]]()
