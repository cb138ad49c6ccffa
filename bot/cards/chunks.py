"""Split a long text into parts without losing a character."""

from __future__ import annotations

import re
import unicodedata

_LINE_SEARCH = 400
_LONGEST_TOKEN = 40
# A mark such as ⟦U+202E⟧ that the cut would tear apart.
_OPEN_MARK = re.compile(r"⟦[^⟧\n]*$")


def chunks(text: str, size: int) -> list[str]:
    """Return parts of at most ``size`` characters; joined, they are the text.

    A part ends after a line break when there is one near its end, else never inside a
    mark for a hidden character and never between a letter and its accents.

    Args:
        text: already revealed; an empty text is one empty part.
        size: more than 100.
    """
    parts: list[str] = []
    start = 0
    while len(text) - start > size:
        end = _end(text, start, start + size)
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


def _end(text: str, start: int, end: int) -> int:
    newline = text.rfind("\n", max(start, end - _LINE_SEARCH), end)
    # Not at `start` itself: that part would be a lone line break, an empty box.
    if newline > start:
        return newline + 1
    mark = _OPEN_MARK.search(text, max(start + 1, end - _LONGEST_TOKEN), end)
    if mark:
        return mark.start()
    least = max(start + 1, end - _LONGEST_TOKEN)
    # Bounded: a text of nothing but accents has no place to cut, and is then cut
    # anywhere.
    while end > least and unicodedata.category(text[end])[0] == "M":
        end -= 1
    return end
