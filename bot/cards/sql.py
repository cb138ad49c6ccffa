"""Warn of a SQL statement that no condition limits.

The dialect is unknown, and the author of the text may want it misread. So only text
that all dialects read alike is parsed. If one character is ambiguous, such as a
backslash in a string, there is no warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import LiteralString, NamedTuple

from keyturn.bot.text import Template, template
from keyturn.gateway.approvals.evidence import redacted
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


_SENTENCES: dict[str, LiteralString] = {
    "DELETE": "⚠️ *DELETE without WHERE:* no condition limits which rows it deletes.",
    "UPDATE": "⚠️ *UPDATE without WHERE:* no condition limits which rows it changes.",
}


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
    return [template(_SENTENCES[kind]) for kind in unlimited(item)]
