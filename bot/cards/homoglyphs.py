"""Detect words and host names of look-alike letters (homoglyphs).

A word is suspicious if it mixes look-alike alphabets. So is a word of Cyrillic or Greek
letters that resemble Latin ones, if the text has no other letter of that alphabet.
Ordinary text is accepted: accents, one alphabet per word, Latin next to Chinese,
Japanese, Korean, Thai or Arabic, which are not confused with Latin, and the few Greek
letters that are units.

A text can also look like another one of the same letters if an accent is a separate
character. Keyboards and file systems produce such words honestly. So only texts that
people compare as a whole (addresses, paths, numbers) are reported, and words that occur
in both forms.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator

from keyturn.gateway.approvals.invisible_characters import is_hidden

# First words of Unicode names of alphabets with letters that resemble Latin ones.
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
# Drawn as a Latin letter in most fonts; by code point, as they are indistinguishable.
_AS_LATIN = {
    "Cyrillic": frozenset(
        "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u0475\u04bb\u0501"
        "\u051b\u051d\u0405\u0406\u0408\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420"
        "\u0421\u0422\u0423\u0425\u0474\u04ae\u04c0\u04cf\u050c\u051a\u051c"
    ),
    "Greek": frozenset(
        "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5"
        "\u03a7\u037f\u03bd\u03bf\u03f2\u03f3\u03f9"
    ),
}
_UNITS = frozenset("ΔΩμπ")
_WORD = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_TOKEN = re.compile(r"[^\s\"(),;<>\[\]{}]+")
_AROUND = ".:!?…'*`\u2018\u2019\u201c\u201d\u00ab\u00bb"
# An address, a host, a file, a path, a name with a number.
_NAME = re.compile(r"[@._\\\d]|^[/~]|://")
# Sorting accents takes the square of their number; people do not compare longer names.
_LONGEST_TOKEN = 256


def homoglyph_warnings(text: str) -> list[str]:
    """Return a line for each word or host of `text` with look-alike letters.

    A line contains the word, and a host's ASCII form (Punycode): untrusted text. Hidden
    characters and accents are ignored, so that they cannot split a word.
    """
    found: dict[str, str] = {}
    seen = _skeleton(text)
    as_latin = _read_as_latin({*seen})
    for word in _words(seen):
        scripts = sorted({script for script in map(_script, word) if script})
        if len(scripts) > 1:
            why = f"mixes {' and '.join(scripts)} letters"
        elif scripts and scripts[0] in as_latin and _has_letters(word):
            why = f"reads as Latin and has {scripts[0]} letters"
        else:
            continue
        if word not in found:
            host = f" ({_punycode(word)})" if "." in word else ""
            found[word] = f"{word}{host} {why}"
    return [*found.values(), *_unusual_forms(text)]


def _unusual_forms(text: str) -> list[str]:
    """Name the texts whose letters have unusual code points (not in NFC)."""
    if text.isascii():
        return []
    tokens = {token.strip(_AROUND) for token in _TOKEN.findall(text)}
    short = sorted(token for token in tokens if len(token) <= _LONGEST_TOKEN)
    found: dict[str, str] = {}
    for token in short:
        if unicodedata.is_normalized("NFC", token):
            continue
        usual = unicodedata.normalize("NFC", token)
        if usual in tokens:
            found[usual] = (
                f"{usual} stands here in two Unicode forms that look the same"
            )
        elif _NAME.search(token):
            found[usual] = (
                f"{token} is not in Unicode's usual form (NFC), so another text can "
                "look the same"
            )
    return [*found.values()]


def _read_as_latin(letters: Collection[str]) -> frozenset[str]:
    """Return the alphabets whose letters in a text all resemble Latin ones.

    If other letters occur, readers expect that alphabet.
    """
    return frozenset(
        script
        for script, latin in _AS_LATIN.items()
        if all(one in latin for one in letters if _script(one) == script)
    )


def _has_letters(word: str) -> bool:
    # One letter alone is a word in many languages.
    return sum(map(str.isalpha, word)) > 1


def _words(seen: str) -> Iterator[str]:
    """Yield hosts whole, and the parts of other words: Russian writes `IT-отдел`."""
    for word in _WORD.findall(seen):
        # A host is compared as a whole, because readers recognize the whole name.
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
    # As a browser does it (IDNA maps fullwidth letters to plain ones); otherwise the
    # warning would name another host than the one that opens.
    labels = unicodedata.normalize("NFKC", host).lower().split(".")
    return ".".join(
        label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")
        for label in labels
    )
