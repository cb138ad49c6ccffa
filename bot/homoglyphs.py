"""Detect words and host names that mix look-alike alphabets (homoglyphs).

Ordinary text is left alone: accents, one alphabet a word, Latin beside Chinese,
Japanese, Korean, Thai or Arabic, which no one takes for Latin, and the few Greek
letters that stand for units.
"""

import re
import unicodedata
from collections.abc import Iterator

from twokey.gateway.approvals.invisible_characters import is_hidden

# First words of Unicode names. All hold letters that pass for Latin ones.
_LOOKALIKE = frozenset(
    {
        "LATIN",
        "ARMENIAN",
        "CHEROKEE",
        "COPTIC",
        "CYRILLIC",
        "DESERET",
        "FULLWIDTH",
        "GEORGIAN",
        "GREEK",
        "KELVIN",
        "LISU",
        "MATHEMATICAL",
        "OSAGE",
    }
)
_UNITS = frozenset("ΔΩμπ")
_WORD = re.compile(r"[\w-]+(?:\.[\w-]+)*")


def homoglyph_warnings(text: str) -> list[str]:
    """Return a line for each word or host of `text` that mixes look-alike alphabets.

    A line holds the word, and of a host its ASCII form (Punycode): untrusted text.
    Hidden characters and accents are looked through, so that they cannot split a word.
    """
    found: dict[str, str] = {}
    for word in _words(text):
        scripts = sorted({script for script in map(_script, word) if script})
        if len(scripts) > 1 and word not in found:
            host = f" ({_punycode(word)})" if "." in word else ""
            found[word] = f"{word}{host} mixes {' and '.join(scripts)} letters"
    return [*found.values()]


def _words(text: str) -> Iterator[str]:
    """Yield hosts whole, and the parts of other words: Russian writes `IT-отдел`."""
    for word in _WORD.findall(_skeleton(text)):
        # A host is compared as a whole, because its parts together are what a reader
        # takes for a name they know.
        yield from (word,) if "." in word else word.split("-")


def _skeleton(text: str) -> str:
    # ASCII has one alphabet, and most arguments are ASCII.
    if text.isascii():
        return ""
    return "".join(
        character
        for character in text
        if character.isspace()
        or not (is_hidden(character) or unicodedata.combining(character))
    )


def _script(character: str) -> str | None:
    if character.isascii():
        return "Latin" if character.isalpha() else None
    if not character.isalpha() or character in _UNITS:
        return None
    first = unicodedata.name(character, "").partition(" ")[0]
    return first.capitalize() if first in _LOOKALIKE else None


def _punycode(host: str) -> str:
    # As a browser does it (IDNA maps fullwidth letters to plain ones), or the warning
    # would name another host than the one that opens.
    labels = unicodedata.normalize("NFKC", host).lower().split(".")
    return ".".join(
        label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")
        for label in labels
    )
