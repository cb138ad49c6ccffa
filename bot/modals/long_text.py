"""Split a long text over several inputs, and join what comes back.

Slack lets nobody type more than 3,000 characters into one input, and may drop blanks at
the ends of what it carries. So a text is cut at blanks, which are put back when its
parts are joined, or inside a word that is very long. A text that cannot be cut so that
each part comes back as it went is not split at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from twokey.bot.modals.schema import is_plain
from twokey.bot.modals.texts import is_carried, slack_length
from twokey.sandbox.blockkit.limits import TYPED

PART = 2_000
"""How long a part is at most, as Slack counts: there is room to add to each of them."""

# A longer word, as in text of a language without blanks, is cut itself.
_WORD = re.compile(r"(\s*)(\S{1,500})")


class Part(NamedTuple):
    """A part of a text, and the blanks that stand before it."""

    before: str
    text: str


def parts_of(text: str) -> tuple[Part, ...]:
    """Return the parts of a text without blanks at its ends; none if it has no parts.

    A text that one input holds is one part. The same text always gives the same parts.
    """
    if slack_length(text) <= TYPED:
        return (Part("", text),)
    words = [Part(*match.groups()) for match in _WORD.finditer(text)]
    found: list[Part] = []
    while words:
        count = _fitting(words)
        first, *more = words[:count]
        found.append(Part(first.before, first.text + "".join(map("".join, more))))
        words = words[count:]
    can_be_typed = all(
        slack_length(part.text) <= TYPED and is_plain(part.text) for part in found
    )
    return tuple(found) if can_be_typed else ()


def joined(parts: Sequence[Part], typed: Iterable[str]) -> str:
    """Join what was typed for each part; an emptied part leaves no gap.

    A part that nobody touched keeps its exact text beside one that was changed.
    """
    text = ""
    for part, found in zip(parts, typed, strict=True):
        words = part.text if is_carried(part.text, found) else found
        text += (part.before if text else "") + words if words else ""
    return text


def _fitting(words: Sequence[Part]) -> int:
    """Return how many words make a part: up to a line break if one is near."""
    size, line_end = 0, 0
    for place, (before, word) in enumerate(words):
        if place and size > PART // 2 and "\n" in before:
            line_end = place
        size += slack_length(before) + slack_length(word)
        if place and size > PART:
            return line_end or place
    return len(words)
