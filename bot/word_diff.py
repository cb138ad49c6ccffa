"""Compare two texts word by word, and render the difference as untrusted text.

Blanks and line breaks are compared, too: joined, the parts of a difference give either
text back exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from twokey.bot.text import reveal
from twokey.gateway.approvals.invisible_characters import mark

MAX_WORDS = 800
"""Most words and blanks that are compared between the first and the last change.

The time of a comparison grows with their square, and anybody may have written both.
"""

_WORD = re.compile(r"\S+|\s+")
_BESIDE = 40
"""Unchanged characters that are shown at either side of a change."""


class PartKind(StrEnum):
    """Which of the two texts a part of a difference is in."""

    SAME = "same"
    REMOVED = "removed"
    ADDED = "added"


class Part(NamedTuple):
    """A stretch of one of the texts or of both, as it came: nothing is revealed."""

    kind: PartKind
    text: str


def word_diff(before: str, after: str) -> tuple[Part, ...]:
    """Return the parts of two texts in order, a removed one before what replaces it.

    Parts that are the same or removed give ``before``; parts that are the same or added
    give ``after``. Where more than `MAX_WORDS` lie between the first and the last
    change, all of them are one change.
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    middle = _compared(old[head : len(old) - tail], new[head : len(new) - tail])
    first = Part(PartKind.SAME, "".join(old[:head]))
    last = Part(PartKind.SAME, "".join(old[len(old) - tail :]))
    return tuple(part for part in (first, *middle, last) if part.text)


def shown_lines(parts: Sequence[Part]) -> list[tuple[bool, str]]:
    """Return a difference as one text, such as ``a refund of ⟦-20⟧⟦+30⟧ euros``.

    Hidden characters stand as marks. Only our code writes white brackets, so neither
    text can imitate a change. Unchanged words far from a change are left out, with
    their number of characters.

    Returns:
        Its lines, each with whether it has a change.
    """
    # Told by the parts and not by the brackets: a text may hold a closing one.
    lines = [(False, "")]
    for part, text in zip(parts, _shown_parts(parts), strict=True):
        is_change = part.kind is not PartKind.SAME
        first, *rest = text.split("\n")
        was_changed, before = lines[-1]
        lines[-1] = (was_changed or is_change, before + first)
        lines += [(is_change, line) for line in rest]
    return lines


def _shown_parts(parts: Sequence[Part]) -> list[str]:
    last = len(parts) - 1
    return [
        _beside(part.text, is_first=place == 0, is_last=place == last)
        if part.kind is PartKind.SAME
        else f"⟦{_SIGNS[part.kind]}{_visible(part.text)}⟧"
        for place, part in enumerate(parts)
    ]


_SIGNS = {PartKind.REMOVED: "-", PartKind.ADDED: "+"}


def _alike(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many words at the start of both are the same."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterable[Part]:
    if max(len(old), len(new)) > MAX_WORDS:
        return _change(old, new)
    found: list[Part] = []
    removed, added = list[str](), list[str]()
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        same = "".join(old[i:j]) if kind == "equal" else ""
        if same and not same.isspace():
            found += [*_change(removed, added), Part(PartKind.SAME, same)]
            removed, added = [], []
        else:
            # A blank between two changed words is read as part of the change.
            removed += old[i:j]
            added += new[k:m]
    return [*found, *_change(removed, added)]


def _change(old: Sequence[str], new: Sequence[str]) -> list[Part]:
    return [Part(PartKind.REMOVED, "".join(old)), Part(PartKind.ADDED, "".join(new))]


def _beside(text: str, *, is_first: bool, is_last: bool) -> str:
    """Return an unchanged stretch, its middle left out when it is long."""
    head, tail = (0 if is_first else _BESIDE), (0 if is_last else _BESIDE)
    left = len(text) - head - tail
    if left <= _BESIDE:
        return _visible(text)
    gap = f"⟦{left:,} characters unchanged⟧"
    return f"{_visible(text[:head])}{gap}{_visible(text[len(text) - tail :])}"


def _visible(text: str) -> str:
    return reveal(text.replace("⟦", mark("⟦")))
