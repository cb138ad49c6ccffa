"""Find invisible characters, and those that look like a plain space.

A rule over general categories misses 267 code points that every font draws as nothing
(Hangul fillers, variation selectors …), so the Unicode property made for them stands
here in full.
"""

import unicodedata
from functools import lru_cache

from keyturn.gateway.approvals.emoji import SEQUENCE

# Default_Ignorable_Code_Point, 4,174 code points:
# https://www.unicode.org/Public/16.0.0/ucd/DerivedCoreProperties.txt
DEFAULT_IGNORABLE = (
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)

# Assigned, of a visible category, and drawn as nothing.
_BLANK = frozenset("\u2800\ufffc\U00016fe4\U0001d159")

# Control, format, surrogate, private use, unassigned (in the Unicode version of this
# Python: a newer character is marked until Python knows it), line and paragraph
# separators, and every space but the plain one.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_PLAIN = frozenset(" \n\t")


@lru_cache(maxsize=4096)
def is_hidden(character: str) -> bool:
    """Return whether one character hides: newline, tab and plain space do not."""
    if character in _PLAIN:
        return False
    if unicodedata.category(character) in _HIDDEN_CATEGORIES or character in _BLANK:
        return True
    point = ord(character)
    return any(first <= point <= last for first, last in DEFAULT_IGNORABLE)


def has_hidden(text: str) -> bool:
    """Return whether a string holds any character that a reader would not see.

    What belongs to an emoji does not count: it is seen as that emoji.
    """
    # A set, because a text has few different characters and each takes a search.
    if not any(map(is_hidden, set(text))):
        return False
    return any(map(is_hidden, set(SEQUENCE.sub("", text))))


def mark(character: str) -> str:
    """Name a character as `⟦U+202E⟧`, at least four digits."""
    return f"⟦U+{ord(character):04X}⟧"
