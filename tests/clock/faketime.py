"""Find libfaketime, install Debian's where allowed, or name the package."""

from __future__ import annotations

import os
from pathlib import Path

from tests.debian import find_or_install

NAME = "libfaketimeMT.so.1"
PLACES = ("/usr/lib", "/usr/lib64", "/usr/local/lib")


class NoFaketime(Exception):
    """There is nothing to move a server's clock with."""


def library() -> str:
    """Return the path of libfaketime.

    Raises:
        NoFaketime: it is not installed.
    """
    named = os.environ.get("KEYTURN_FAKETIME")
    found = named or find_or_install(_installed, "faketime")
    if found is None or not Path(found).is_file():
        raise NoFaketime(
            f"The tests of moved clocks need libfaketime and found {named!r} (looked "
            f"for {NAME} below {', '.join(PLACES)}). Install it, on Debian with "
            "`apt-get install faketime`, or set KEYTURN_FAKETIME to its path."
        )
    return found


def variables(file: Path) -> dict[str, str]:
    """Return the variables that make a process follow the clock of a file.

    Only the time of day follows it: the clocks that count from the start of a machine
    cannot be set.

    Raises:
        NoFaketime: it is not installed.
    """
    return {
        "LD_PRELOAD": library(),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def _installed() -> str | None:
    found = (path for place in PLACES for path in Path(place).glob(f"**/{NAME}"))
    return next((str(path) for path in found), None)
