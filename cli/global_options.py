"""Global options and the environment of a command.

Every help page loads this module, so its imports are cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass
class GlobalOptions:
    """The options and environment of each command."""

    env: Mapping[str, str]
    config: Path | None = None
    debug: bool = False
