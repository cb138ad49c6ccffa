"""Find invisible characters, and those that look like a plain space.

A rule over general categories misses 267 code points that every font draws as nothing
(Hangul fillers, variation selectors …). The Unicode property made for them is therefore
listed here in full.

Invisible characters are harmless in emoji sequences that Unicode recommends (RGI, UTS
#51), each in its full form only: people joined by U+200D, flags of tags, keycaps, and
the selector U+FE0F where it is defined. Any other use may hide text.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import LiteralString

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

# Assigned, in a visible category, but drawn as nothing.
_BLANK = frozenset("\u2800\ufffc\U00016fe4\U0001d159")

# Control, format, surrogate, private use, unassigned (in the Unicode version of this
# Python: a newer character is marked until Python has it), line and paragraph
# separators, and every space except the plain one.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_PLAIN = frozenset(" \n\t")


@lru_cache(maxsize=4096)
def is_hidden(character: str) -> bool:
    """Return True if one character is hidden: newline, tab and plain space are not."""
    if character in _PLAIN:
        return False
    if unicodedata.category(character) in _HIDDEN_CATEGORIES or character in _BLANK:
        return True
    point = ord(character)
    return any(first <= point <= last for first, last in DEFAULT_IGNORABLE)


def has_hidden(text: str) -> bool:
    """Return True if a string has a character that a reader would not see.

    Parts of an emoji do not count: they are visible as that emoji.
    """
    # A set, because a text has few different characters and each costs a search.
    if not any(map(is_hidden, set(text))):
        return False
    return any(map(is_hidden, set(SEQUENCE.sub("", text))))


def mark(character: str) -> str:
    """Name a character as `⟦U+202E⟧`, at least four digits."""
    return f"⟦U+{ord(character):04X}⟧"


JOINER: LiteralString = "\u200d"
STYLE: LiteralString = "\ufe0f"
"""Two characters that draw nothing and join several characters into one emoji."""

_TONE: LiteralString = "[\U0001f3fb-\U0001f3ff]"
_ADULT: LiteralString = "[👨👩🧑]"

# Emoji that take U+FE0F, the selector of the coloured form:
# https://www.unicode.org/Public/emoji/16.0/emoji-variation-sequences.txt
_STYLED: LiteralString = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328"
    "\u23cf\u23e9\u23ea\u23ed-\u23f0\u23f1-\u23f3\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6"
    "\u25c0\u25fb-\u25fe\u2600-\u2604\u260e\u2611\u2614\u2615\u2618\u261d\u2620\u2622"
    "\u2623\u2626\u262a\u262e\u262f\u2638-\u263a\u2640\u2642\u2648-\u2653\u265f\u2660"
    "\u2663\u2665\u2666\u2668\u267b\u267e\u267f\u2692-\u2697\u2699\u269b\u269c\u26a0"
    "\u26a1\u26a7\u26aa\u26ab\u26b0\u26b1\u26bd\u26be\u26c4\u26c5\u26c8\u26cf\u26d1"
    "\u26d3\u26d4\u26e9\u26ea\u26f0-\u26f5\u26f7-\u26fa\u26fd\u2702\u2708-\u270d\u270f"
    "\u2712\u2714\u2716\u271d\u2721\u2733\u2734\u2744\u2747\u2753\u2757\u2763\u2764"
    "\u27a1\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f004\U0001f170\U0001f171\U0001f17e\U0001f17f\U0001f202\U0001f21a\U0001f22f"
    "\U0001f237\U0001f321\U0001f324-\U0001f32c\U0001f336\U0001f37d\U0001f396\U0001f397"
    "\U0001f399-\U0001f39b\U0001f39e\U0001f39f\U0001f3cb-\U0001f3ce"
    "\U0001f3d4-\U0001f3df\U0001f3f3\U0001f3f5\U0001f3f7\U0001f43f\U0001f441\U0001f4fd"
    "\U0001f549\U0001f54a\U0001f56f\U0001f570\U0001f573-\U0001f579\U0001f587"
    "\U0001f58a-\U0001f58d\U0001f590\U0001f5a5\U0001f5a8\U0001f5b1\U0001f5b2\U0001f5bc"
    "\U0001f5c2-\U0001f5c4\U0001f5d1-\U0001f5d3\U0001f5dc-\U0001f5de\U0001f5e1\U0001f5e3"
    "\U0001f5e8\U0001f5ef\U0001f5f3\U0001f5fa\U0001f6cb\U0001f6cd-\U0001f6cf"
    "\U0001f6e0-\U0001f6e5\U0001f6e9\U0001f6f0\U0001f6f3"
)

# People shown as a woman or a man by U+2640 or U+2642.
_GENDERED: LiteralString = (
    "🏃🏄🏊👮👯👰👱👳👷💁💂💆💇🙅🙆🙇🙋🙍🙎🚣🚴🚵🚶🤦🤵"
    "🤷🤸🤹🤼🤽🤾🦸🦹🧍🧎🧏🧔🧖🧗🧘🧙🧚🧛🧜🧝🧞🧟"
)
_GENDERED_STYLED: LiteralString = "⛹🏋🏌🕵"
_AT_WORK: LiteralString = "🌾🍳🍼🎄🎓🎤🎨🏫🏭💻💼🔧🔬🚀🚒🦰🦱🦲🦳🩰"

_RIGHT: LiteralString = f"{JOINER}➡{STYLE}"
_GENDER: LiteralString = f"{JOINER}[♀♂]{STYLE}"
# The tags of gb-eng, gb-sct and gb-wls.
_GB: LiteralString = "\U000e0067\U000e0062"
_ENG: LiteralString = "\U000e0065\U000e006e\U000e0067"
_SCT: LiteralString = "\U000e0073\U000e0063\U000e0074"
_WLS: LiteralString = "\U000e0077\U000e006c\U000e0073"
_END: LiteralString = "\U000e007f"
_SEQUENCES: tuple[LiteralString, ...] = (
    f"[0-9#*]{STYLE}\u20e3",
    f"🏴{_GB}(?:{_ENG}|{_SCT}|{_WLS}){_END}",
    f"[🏃🚶🧎]{_TONE}?(?:{_GENDER})?{_RIGHT}",
    f"[{_GENDERED}]{_TONE}?{_GENDER}",
    f"[{_GENDERED_STYLED}](?:{_TONE}|{STYLE}){_GENDER}",
    f"{_ADULT}{_TONE}?{JOINER}[🦯🦼🦽](?:{_RIGHT})?",
    f"{_ADULT}{_TONE}?{JOINER}(?:[⚕⚖✈]{STYLE}|[{_AT_WORK}])",
    f"{_ADULT}{_TONE}?{JOINER}❤{STYLE}{JOINER}(?:💋{JOINER})?{_ADULT}{_TONE}?",
    f"{_ADULT}{_TONE}?{JOINER}[🤝🐰\U0001faef]{JOINER}{_ADULT}{_TONE}?",
    f"🫱{_TONE}{JOINER}🫲{_TONE}",
    f"[👨👩](?:{JOINER}[👨👩])?(?:{JOINER}[👦👧]){{1,2}}",
    f"🧑(?:{JOINER}🧑)?(?:{JOINER}🧒){{1,2}}",
    f"🏳{STYLE}{JOINER}(?:🌈|⚧{STYLE})",
    f"🏴{JOINER}☠{STYLE}",
    f"🐻{JOINER}❄{STYLE}",
    f"❤{STYLE}{JOINER}[🔥🩹]",
    f"⛓{STYLE}{JOINER}💥",
    f"👁{STYLE}{JOINER}🗨{STYLE}",
    f"🙂{JOINER}[↔↕]{STYLE}",
    f"🐕{JOINER}🦺|[🐈🐦]{JOINER}⬛|🐦{JOINER}🔥|🍄{JOINER}🟫|🍋{JOINER}🟩",
    f"😮{JOINER}💨|😵{JOINER}💫|😶{JOINER}🌫{STYLE}",
    # Last: only if no longer sequence begins here.
    f"[{_STYLED}]{STYLE}",
)
# Second character of every sequence: one look at it is enough for most texts.
_SECOND: LiteralString = f"[{JOINER}{STYLE}\U000e0067\U0001f3fb-\U0001f3ff]"
SEQUENCE = re.compile(f"(?=[^{JOINER}{STYLE}]{_SECOND})(?:{'|'.join(_SEQUENCES)})")
"""One emoji with a character that draws nothing by itself."""
