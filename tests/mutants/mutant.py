"""Say what a mutant is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One way to break one promise."""

    promise: str
    path: str
    before: str
    after: str
    tests: str = "tests/approvals tests/service"
