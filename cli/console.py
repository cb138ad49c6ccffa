"""Terminal output, options that commands share, and input from a file or stdin."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from pydantic import JsonValue

from keyturn.gateway import documents
from keyturn.gateway.documents import as_text
from keyturn.gateway.errors import SettingsError

NO_LIMIT = -1


def flag(name: str, text: str) -> object:
    """Describe a switch of a command; it has no opposite, such as ``--no-json``."""
    return typer.Option(name, help=text)


def option(metavar: str, text: str, *names: str) -> object:
    """Describe an option with a value, by a name for the value and a help text.

    Its name is that of the parameter, or ``names``.
    """
    return typer.Option(*names, metavar=metavar, help=text)


def port_option(text: str) -> object:
    """Describe an option with the number of a port; 0 is any free one."""
    return typer.Option(min=0, max=65_535, help=f"{text}; 0: any free.")


def argument(metavar: str, text: str) -> object:
    """Describe an argument without a name: a word for its value, and a help text."""
    return typer.Argument(metavar=metavar, help=text)


AsJson = Annotated[bool, flag("--json", "Print JSON.")]


def caller(given: str = "") -> str:
    """Return the given name, or that of the current user, for the audit log."""
    try:
        return given or f"cli/{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no name
        return "cli"


By = Annotated[
    str,
    typer.Option(
        help="The acting person, for the audit log.",
        show_default="you",
        callback=caller,
    ),
]


def good(text: str) -> None:
    """Print a line about a success."""
    _line("✔", typer.colors.GREEN, text)


def bad(text: str) -> None:
    """Print a line about a problem; further lines are indented."""
    _line("✖", typer.colors.RED, text)


def note(text: str) -> None:
    """Print a line of information."""
    _line("·", typer.colors.YELLOW, text)


def as_json(value: object) -> None:
    """Print one JSON document in ASCII, which cannot control a terminal."""
    typer.echo(json.dumps(value, indent=2))


Row = dict[str, JsonValue]
"""A record in a list, as JSON."""


def listing(
    rows: Sequence[Row],
    *,
    json: bool,
    nothing: str,
    is_bad: Callable[[Row], object] = lambda _: False,
) -> None:
    """Print records as JSON, or each as a line of its fields that are not empty.

    Args:
        rows: the records.
        json: whether to print JSON.
        nothing: the line about no records.
        is_bad: whether a record is a problem.
    """
    if json:
        as_json(rows)
        return
    for row in rows:
        shown = {
            name: ", ".join(map(str, value)) if isinstance(value, list) else value
            for name, value in row.items()
            if value not in (None, "", [])
        }
        line = "  ".join(f"{name}={printable(str(one))}" for name, one in shown.items())
        (bad if is_bad(row) else note)(line)
    if not rows:
        good(nothing)


def printable(text: str) -> str:
    """Return untrusted text in a form that cannot control a terminal."""
    # Escape sequences can move the cursor, change the title or write to the clipboard
    # of a terminal; `isprintable` is false for all of them.
    return text if text.isprintable() else ascii(text)


def utc(at_ms: int) -> str:
    """Return Unix milliseconds as a time in UTC, to the second."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(sep=" ", timespec="seconds")


def read_text(path: Path, what: str, *, hint: str = "") -> str:
    """Return the text of a file from the command line; ``-`` is stdin.

    ``hint`` is the advice when the file does not exist.

    Raises:
        SettingsError: when it cannot be read.
    """
    if str(path) != "-":
        return documents.read_text(path, what, hint=hint, at_most=NO_LIMIT)
    return as_text(sys.stdin.buffer.read(), "<stdin>")


@contextmanager
def new_file(path: Path) -> Generator[BinaryIO]:
    """Open a file for writing; it appears complete or not at all.

    Raises:
        SettingsError: when it cannot be written, or is a device or a folder.
    """
    # Root would replace /dev/null for all processes.
    if path.exists() and not path.is_file():
        raise SettingsError(f"{str(path)!r} is no regular file; name another one.")
    rough = path.with_name(f".{path.name}.part")
    try:
        with rough.open("wb") as file:
            yield file
            file.flush()
            # Before the rename: a power cut must not leave an empty file.
            os.fsync(file.fileno())
        rough.replace(path)
    except OSError as error:
        problem = error.strerror or type(error).__name__
        raise SettingsError(f"{str(path)!r} cannot be written: {problem}.") from error
    finally:
        rough.unlink(missing_ok=True)


def _line(mark: str, colour: str, text: str) -> None:
    indented = text.replace("\n", "\n  ")
    typer.echo(f"{typer.style(mark, fg=colour)} {indented}")
