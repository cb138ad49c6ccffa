"""Compare text with a file next to the test; `KEYTURN_SNAPSHOTS=write` renews it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CARD_TEXTS = Path(__file__).parent / "cards" / "snapshots"
MODAL_TEXTS = Path(__file__).parent / "modals" / "snapshots"


def assert_same(folder: Path, name: str, text: str) -> None:
    """Fail when the text differs from the file, or there is no file."""
    path = folder / f"{name}.txt"
    if os.environ.get("KEYTURN_SNAPSHOTS") == "write":
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), (
        f"There is no snapshot {path}; run with KEYTURN_SNAPSHOTS=write."
    )
    assert text == path.read_text(encoding="utf-8")


def assert_all_same(folder: Path, name: str, texts: Mapping[str, str]) -> None:
    """Compare several texts with one file; each is below its name."""
    parts = [f"=== {title}\n{text.rstrip()}\n" for title, text in texts.items()]
    assert_same(folder, name, "\n".join(parts))
