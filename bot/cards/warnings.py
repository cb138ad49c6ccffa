"""Warn of text that misleads: a SQL statement without limits, and look-alike letters.

The dialect of SQL is unknown, and the author of the text may want it misread. So only
text that all dialects read alike is parsed. If one character is ambiguous, such as a
backslash in a string, there is no warning.

A word is suspicious if it mixes look-alike alphabets (homoglyphs). So is a word of
Cyrillic or Greek letters that resemble Latin ones, if the text has no other letter of
that alphabet. Ordinary text is accepted: accents, one alphabet per word, Latin next to
Chinese, Japanese, Korean, Thai or Arabic, which are not confused with Latin, and the
few Greek letters that are units.

A text can also look like another one of the same letters if an accent is a separate
character. Keyboards and file systems produce such words honestly. So only texts that
people compare as a whole (addresses, paths, numbers) are reported, and words that occur
in both forms.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from typing import LiteralString, NamedTuple

from keyturn.bot.text import Template, code, template
from keyturn.gateway.approvals.evidence import redacted
from keyturn.gateway.approvals.invisible_characters import is_hidden
from keyturn.gateway.approvals.policy_decision import PreviewKind
from keyturn.gateway.approvals.record import Item

_TOKEN = re.compile(
    r"""
    (?P<blank>[ \t\r\n]+
      # MySQL wants a blank behind the dashes. It runs what stands in /*! */, and closes
      # a comment at the first */, where Postgres counts them.
      | --(?:[ \t][^\0\r\n]*)?(?=\r?\n|\Z)
      | /\*(?![!+M])(?:(?!/\*|\*/)[^\0])*\*/
    )
    # Not N'…' or q'[…]': what stands before a quote can change where it ends.
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)(?![\w'"`$#@])
    | (?P<name>"(?:[^"\\\0]|"")*+" | `(?:[^`\\\0]|``)*+`)
    | (?P<other>'(?:[^'\\\0]|'')*+'
      # Not 1WHERE, which some take for two words.
      | \$?[0-9]+(?![\w$])
      | -(?!-) | /(?!\*) | [+*%<>=!|&^~?:,@]
    )
    | (?P<sign>[.;()])
    """,
    re.VERBOSE | re.ASCII,
)
_KINDS = frozenset(
    {"ALTER", "CREATE", "DELETE", "DROP", "INSERT", "SELECT", "TRUNCATE", "UPDATE"}
)
_NEVER_INSIDE = _KINDS | {
    *("BACKUP", "BEGIN", "BULK", "CALL", "CLOSE", "COMMIT", "COPY", "DBCC", "DECLARE"),
    *("DENY", "DO", "EXEC", "EXECUTE", "GO", "GRANT", "IF", "INTO", "KILL", "LOCK"),
    *("MERGE", "OPEN", "PRINT", "RECONFIGURE", "RESTORE", "REVERT", "REVOKE"),
    *("ROLLBACK", "SET", "SHUTDOWN", "USE", "WAITFOR", "WHILE", "WITH"),
}
"""In SQL Server another statement may follow without a semicolon."""

_INSIDE = {
    "ALTER": frozenset({"SET"}),
    "CREATE": frozenset({"SELECT"}),
    "INSERT": frozenset({"INTO", "SELECT"}),
    "UPDATE": frozenset({"SET"}),
}
_LIMITING = frozenset(
    {"FETCH", "FOR", "FROM", "JOIN", "KEYS", "LIMIT", "OFFSET", "ORDER", "PARTITION"}
    | {"QUALIFY", "ROWNUM", "ROWS", "TOP", "USING", "WHERE"}
)
_TABLE = re.compile(r"n(?:\.n)*(?:a?n)?")
"""A table's name, with an optional alias."""


class _Token(NamedTuple):
    kind: str
    text: str
    depth: int  # number of enclosing brackets


def statement_kinds(sql: str) -> tuple[str, ...]:
    """Return the kind of each statement, such as ``UPDATE``; empty if unsure."""
    kinds = tuple(map(_kind, _statements(sql)))
    return kinds if all(kinds) else ()


def without_condition(sql: str) -> tuple[str, ...]:
    """Return UPDATE and DELETE, for statements that surely have no condition."""
    if not statement_kinds(sql):
        return ()
    found = {each[0].text for each in _statements(sql) if _is_unlimited(each)}
    return tuple(sorted(found))


def _statements(sql: str) -> list[list[_Token]]:
    """Return the tokens of each statement; empty if any of them is ambiguous."""
    statements: list[list[_Token]] = [[]]
    end, depth = 0, 0
    for token in _tokens(sql):
        end += len(token.text)
        depth += (token.text == "(") - (token.text == ")")
        if depth < 0 or (token.text == ";" and depth):
            return []
        if token.text == ";":
            statements.append([])
        elif token.kind != "blank":
            is_word = token.kind == "word"
            text = token.text.upper() if is_word else token.text
            statements[-1].append(_Token(token.kind, text, depth))
    is_whole = end == len(sql) and depth == 0
    return [each for each in statements if each] if is_whole else []


def _tokens(sql: str) -> Iterator[_Token]:
    """Yield tokens up to the first ambiguous place."""
    place = 0
    while found := _TOKEN.match(sql, place):
        yield _Token(str(found.lastgroup), found[0], 0)
        place = found.end()


def _kind(tokens: Sequence[_Token]) -> str:
    """Return the kind of a statement; "" if it may contain another one."""
    kind = tokens[0].text
    if tokens[0].kind != "word" or kind not in _KINDS:
        return ""
    # UPDATE STATISTICS changes no row.
    if kind == "UPDATE" and ("word", "SET") not in {each[:2] for each in tokens}:
        return ""
    for token in tokens[1:]:
        if token.kind != "word" or token.text not in _NEVER_INSIDE:
            continue
        # A query in brackets may be part of any statement.
        is_query = token.text == "SELECT" and (token.depth or kind == "SELECT")
        if not is_query and token.text not in _INSIDE.get(kind, ()):
            return ""
    return kind


def _is_unlimited(tokens: Sequence[_Token]) -> bool:
    """Return whether an UPDATE or DELETE surely has no limiting clause.

    Args:
        tokens: of a statement of a known kind.
    """
    words = [token.text if token.kind == "word" else "" for token in tokens]
    if words[:2] == ["DELETE", "FROM"]:
        return _is_table(tokens[2:])
    if words[0] != "UPDATE" or words.count("SET") != 1:
        return False
    place = words.index("SET")
    return _is_table(tokens[1:place]) and not {*words[place:]} & _LIMITING


def _is_table(tokens: Sequence[_Token]) -> bool:
    letters = {"AS": "a", ".": "."}
    form = "".join(
        "k"
        if token.kind == "word" and token.text in _LIMITING
        else letters.get(token.text, "n" if token.kind in {"word", "name"} else "k")
        for token in tokens
    )
    return _TABLE.fullmatch(form) is not None


def unlimited(item: Item) -> tuple[str, ...]:
    """Return UPDATE and DELETE, if one in the call surely has no condition."""
    preview = item.preview
    if preview is None or preview.kind is not PreviewKind.SQL:
        return ()
    # A hidden statement gets no warning.
    shown = redacted(item.args, item.redact).get(preview.text)
    return without_condition(shown) if isinstance(shown, str) else ()


def sql_warnings(item: Item) -> list[Template]:
    """Return a sentence for each kind of statement without a condition."""
    said: LiteralString = "⚠️ *{kind} without WHERE:* no condition limits its rows."
    return [template(said, kind=code(kind)) for kind in unlimited(item)]


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
_COMPARED = re.compile(r"[^\s\"(),;<>\[\]{}]+")
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
    found: list[str] = []
    seen = _skeleton(text)
    as_latin = _read_as_latin({*seen})
    # Each word once: a hostile text repeats one thousands of times.
    for word in dict.fromkeys(_words(seen)):
        scripts = sorted({script for script in map(_script, word) if script})
        if len(scripts) > 1:
            why = f"mixes {' and '.join(scripts)} letters"
        # One letter alone is a word in many languages.
        elif scripts and scripts[0] in as_latin and sum(map(str.isalpha, word)) > 1:
            why = f"reads as Latin and has {scripts[0]} letters"
        else:
            continue
        host = f" ({_punycode(word)})" if "." in word else ""
        found.append(f"{word}{host} {why}")
    return [*found, *_unusual_forms(text)]


def _unusual_forms(text: str) -> list[str]:
    """Name the texts whose letters have unusual code points (not in NFC)."""
    if text.isascii():
        return []
    tokens = {token.strip(_AROUND) for token in _COMPARED.findall(text)}
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
