"""See which names of files are on the disk: those in a folder when it was synced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def synced_names(patch: pytest.MonkeyPatch) -> dict[Path, list[str]]:
    """Return the names in each folder that is synced from now on."""
    found: dict[Path, list[str]] = {}
    plain = os.fsync

    def fsync(descriptor: int) -> None:
        plain(descriptor)
        path = Path(f"/dev/fd/{descriptor}").resolve()
        if path.is_dir():
            names = (one.name for one in path.iterdir())
            found[path] = sorted(one for one in names if not one.startswith("."))

    patch.setattr(os, "fsync", fsync)
    return found
