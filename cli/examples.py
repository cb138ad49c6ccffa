"""Examples at the end of a help page."""

from __future__ import annotations


def examples(*lines: tuple[str, str]) -> str:
    """Return the end of a help page: what to type, and what it does."""
    width = max(len(words) for words, _ in lines)
    rows = [f"  {words:<{width}}  {what}" for words, what in lines]
    return "\n".join(["\b", "Examples:", *rows])
