"""Global options, the environment of a command, and examples for its help page.

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


def examples(*lines: tuple[str, str]) -> str:
    """Return the end of a help page: commands with their descriptions."""
    width = max(len(words) for words, _ in lines)
    rows = [f"  {words:<{width}}  {what}" for words, what in lines]
    return "\n".join(["\b", "Examples:", *rows])
