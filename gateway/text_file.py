"""Read a text file that a user named; return a one-sentence error if that fails."""

from __future__ import annotations

from pathlib import Path

from keyturn.gateway.documents import MAX_TEXT, BadDocument, as_text
from keyturn.gateway.errors import SettingsError

MAX_BYTES = 4 * MAX_TEXT
"""Longest file of settings or policy."""


def read_text(
    path: Path, what: str, *, hint: str = "", at_most: int = MAX_BYTES
) -> str:
    """Return the text of a file.

    Args:
        path: the file.
        what: it should hold, such as ``the policy``.
        hint: what to do when there is no such file.
        at_most: so many bytes; less than 0 is no limit.

    Raises:
        SettingsError: when it cannot be read, is too long or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            # One byte more than allowed tells a file that is too long, without reading
            # all of it.
            found = file.read(at_most + 1 if at_most >= 0 else -1)
    except FileNotFoundError:
        problem = f"There is no file {str(path)!r} with {what}. {hint}".rstrip()
        raise SettingsError(problem) from None
    except OSError as error:
        raise SettingsError(
            f"{str(path)!r} with {what} cannot be read: {error.strerror}."
        ) from error
    if 0 <= at_most < len(found):
        raise SettingsError(f"{path}:1: This is longer than {at_most} bytes.")
    try:
        return as_text(found, str(path))
    except BadDocument as error:
        raise SettingsError(str(error)) from error
