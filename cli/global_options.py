"""Options that stand before a command, and the environment it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass
class GlobalOptions:
    """What each command is given. Imports nothing: all of them wait for it."""

    env: Mapping[str, str]
    config: Path | None = None
    debug: bool = False
