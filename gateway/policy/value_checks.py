"""Check single values: numbers with check digits, addresses, texts that look alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from keyturn.gateway.approvals.invisible_characters import is_hidden
from keyturn.gateway.approvals.private_text import is_card_number

_IBAN = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}", re.ASCII)
_REMAINDER, _MODULUS = 1, 97
_DIGITS = re.compile(r"[0-9]{12,19}", re.ASCII)
_NUMBERS = re.compile(r"[0-9]+")
_ADDRESS = re.compile(r"[^@\s<>]+@([^@\s<>]+)")
_URL = re.compile(r"https?:/*([^/?#]*)", re.IGNORECASE)
_IP = re.compile(r"(?:[0-9.]+|0x[0-9a-f.x]+|\[.*)(?::[0-9]*)?", re.ASCII)
_SHORTEST, _LONGEST = 5, 60
"""Length of texts that can be one letter apart, in characters."""
# Letters that look like Latin ones, folded: Cyrillic, then Greek. The last three are
# read wrong in Latin itself.
_AS_LATIN = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u04bb\u0501\u051b"
    "\u051d\u0432\u043a\u043c\u043d\u0442\u03b1\u03bf\u03bd\u03c1\u03c4\u03c5\u03b9"
    "\u03ba\u0131" + "01|",
    "aeopcyxsijhdqwbkmht" + "aovptuik" + "i" + "ol" + "l",
)


def is_iban(text: str) -> bool:
    """Return whether a text has the form and the check digits of an IBAN.

    ISO 13616-1: the first four characters go to the end, letters become 10 to 35, and
    the number leaves 1 when divided by 97.
    """
    plain = text.replace(" ", "").upper()
    if not _IBAN.fullmatch(plain):
        return False
    number = "".join(str(int(one, 36)) for one in plain[4:] + plain[:4])
    return int(number) % _MODULUS == _REMAINDER


def is_card(text: str) -> bool:
    """Return whether a text has the form and the check digit of a card number."""
    plain = text.replace(" ", "").replace("-", "")
    return _DIGITS.fullmatch(plain) is not None and is_card_number([*map(int, plain)])


def domain_of(text: str) -> str:
    """Return the domain of an e-mail address in lower case; "" for another text."""
    found = _ADDRESS.fullmatch(text.strip())
    return found[1].casefold() if found else ""


def host_of(text: str) -> str:
    """Return the host and port of a URL in lower case; "" for another text."""
    found = _URL.match(text)
    return found[1].rpartition("@")[2].casefold() if found else ""


def is_misleading(url: str) -> bool:
    """Return whether a URL can lead to another host than people read in it.

    These have a user name, a backslash, a host of digits, or letters of other alphabets
    in the host, also as Punycode.
    """
    found, host = _URL.match(url), host_of(url)
    is_odd = "xn--" in host or _IP.fullmatch(host) is not None or not host.isascii()
    return found is not None and (is_odd or "@" in found[1] or "\\" in url)


def skeleton(text: str) -> str:
    """Return a text as people read it: equal for texts that look the same."""
    seen = text.casefold()
    if not seen.isascii():
        whole = unicodedata.normalize("NFKD", seen)
        kept = (
            one for one in whole if not (unicodedata.combining(one) or is_hidden(one))
        )
        seen = "".join(kept)
    read = seen.translate(_AS_LATIN).replace("rn", "m").replace("vv", "w")
    return " ".join(read.split())


def look_alikes(texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of different texts that people take for the same, in order.

    They read the same, or differ by one letter or two swapped ones. Numbers that differ
    by a digit are different numbers.
    """
    by_form: dict[tuple[str, ...], set[str]] = {}
    for text in texts:
        seen = skeleton(text)
        forms: set[tuple[str, ...]] = {(seen,)}
        if _SHORTEST <= len(seen) <= _LONGEST:
            # Two texts with one letter more or less share a form without a letter.
            numbers = "/".join(_NUMBERS.findall(text))
            forms.add((seen, numbers))
            forms |= {(seen[:at] + seen[at + 1 :], numbers) for at in range(len(seen))}
        for form in forms:
            by_form.setdefault(form, set()).add(text)
    # No pairs: a hundred texts that read the same would have thousands.
    return sorted({tuple(sorted(one)) for one in by_form.values() if len(one) > 1})
