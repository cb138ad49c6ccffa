"""Result of one check of ``twokey doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How one check ended."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; ``text`` is what was found and what to do."""

    name: str
    state: State
    text: str
