"""Tokenize a CEL expression, to find the names that it reads without running it.

The library compiles expressions but does not expose the syntax tree. The tokens are
enough to find the arguments, windows and time zones that a rule names: CEL has no
aliases, no assignment and no ``eval``.
https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple


class Kind(StrEnum):
    """The kind of a token."""

    NAME = "name"
    TEXT = "text"
    NUMBER = "number"
    SYMBOL = "symbol"


class Token(NamedTuple):
    """One token; ``text`` is the source text, quotes included."""

    kind: Kind
    text: str


Row = tuple[Token, ...]
"""The tokens of an expression or of a part of it."""


class Call(NamedTuple):
    """One call: ``hour(now, 'UTC')`` or, as a method, ``args.name.size()``.

    ``args`` are the tokens of each argument.
    """

    name: str
    is_method: bool
    args: tuple[Row, ...]
    at: int


_TOKEN = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*)
    | (?P<text>
          [bB]?[rR][bB]?(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*'|"[^"\n]*")
        | [bB]?(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"
                 |'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
    | (?P<number>0[xX][0-9a-fA-F]+[uU]?|[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?[uU]?
                 |\.[0-9]+(?:[eE][-+]?[0-9]+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<symbol>&&|\|\||[<>=!]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def tokens(source: str) -> Row:
    """Split an expression that compiles into its tokens, without comments."""
    return tuple(
        Token(Kind(match.lastgroup), match[0])
        for match in _TOKEN.finditer(source)
        if match.lastgroup and match.lastgroup != "space"
    )


def literal(token: Token) -> str | None:
    """Return the value of a text literal; None for one with escapes, or no text."""
    text = token.text
    if text[:1] in {"r", "R"}:
        text = text[1:]
    elif "\\" in text:
        return None
    for quote in ("'''", '"""', "'", '"'):
        if token.kind is Kind.TEXT and text.startswith(quote):
            return text.removeprefix(quote).removesuffix(quote)
    return None


def chains(row: Row, root: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the position of each use of a root name, and the names selected from it.

    ``args.card.number`` and ``args["card"].number`` are both ``("card", "number")``,
    ``args.items[0]`` is ``("items", "0")``, and ``args.items.size()`` is
    ``("items",)``: a method is not a member.
    """
    for at, token in enumerate(row):
        is_member = at > 0 and row[at - 1].text == "."
        if token == (Kind.NAME, root) and not is_member:
            yield at, tuple(_selected(row, at + 1))


def calls(row: Row) -> Iterator[Call]:
    """Yield every call, macros included, in the order of their names."""
    for at, token in enumerate(row[:-1]):
        if token.kind is Kind.NAME and row[at + 1].text == "(" and token.text != "in":
            is_method = at > 0 and row[at - 1].text == "."
            args, _ = _arguments(row, at + 1)
            yield Call(token.text, is_method, args, at)


def depth(row: Row, names: frozenset[str] | None = None) -> int:
    """Return the nesting depth of brackets.

    Args:
        row: tokens; they need not compile.
        names: count only the brackets of calls of these functions.
    """
    deepest = 0
    opened: list[bool] = []
    before = Token(Kind.SYMBOL, "")
    for token in row:
        if token.kind is Kind.SYMBOL and token.text in _OPENING:
            is_call = token.text == "(" and before.kind is Kind.NAME
            opened.append(names is None or (is_call and before.text in names))
            deepest = max(deepest, sum(opened))
        elif token.kind is Kind.SYMBOL and token.text in _CLOSING and opened:
            opened.pop()
        before = token
    return deepest


def operands(row: Row) -> Iterator[Row]:
    """Yield the operands of ``&&`` and ``||``; each is a truth value.

    Brackets around a whole operand, and a ``!`` before them, are removed.
    """
    while inside := _inside(row):
        row = inside
    symbols = {at: row[at].text for at in _outside(row) if row[at].kind is Kind.SYMBOL}
    # "||" first, because it binds less.
    for joint in ("||", "&&"):
        places = [at for at, text in symbols.items() if text == joint]
        # A condition binds less than both: its parts are not operands.
        if places and "?" not in symbols.values():
            for part in _between(row, places):
                yield from operands(part)
            return
    yield row


def written(row: Row) -> str:
    """Return source text that splits into the same tokens again."""
    text = ""
    for before, token in pairwise((Token(Kind.SYMBOL, "("), *row)):
        is_read = before.kind is Kind.NAME and before.text != "in"
        # Blanks only where they keep tokens apart: `1 .size()` and `1.size()` have
        # different tokens.
        is_tight = (
            before.text in _OPENING | {".", "!"}
            or token.text in _CLOSING | {".", ","}
            or (is_read and token.text in _OPENING)
        )
        is_decimal = before.kind is Kind.NUMBER and token.text == "."
        text += token.text if is_tight and not is_decimal else f" {token.text}"
    return text


def following(row: Row, call: Call) -> Row:
    """Return the tokens after the closing bracket of a call."""
    _, end = _arguments(row, call.at + 1)
    return row[end + 1 :]


def closing(row: Row, opening: int) -> int:
    """Return the position of the bracket that closes the one at ``opening``."""
    return next(opening + at for at in _outside(row[opening:]) if at)


def elements(row: Row) -> Iterator[Row]:
    """Yield the parts between commas; a trailing comma adds no part."""
    commas = [at for at in _outside(row) if row[at] == (Kind.SYMBOL, ",")]
    return filter(None, _between(row, commas))


def _between(row: Row, places: list[int]) -> Iterator[Row]:
    for start, end in pairwise((-1, *places, len(row))):
        yield row[start + 1 : end]


def _outside(row: Row) -> Iterator[int]:
    """Yield the positions of tokens outside all brackets, and of outer brackets."""
    level = 0
    for at, token in enumerate(row):
        text = token.text if token.kind is Kind.SYMBOL else ""
        level -= text in _CLOSING
        if not level:
            yield at
        level += text in _OPENING


def _inside(row: Row) -> Row:
    """Return the tokens inside brackets around the whole row, or nothing."""
    rest = row[1:] if row[0].text == "!" else row
    is_around = rest[0].text == "(" and [*_outside(rest)] == [0, len(rest) - 1]
    return rest[1:-1] if is_around else ()


def _selected(row: Row, at: int) -> Iterator[str]:
    while at + 1 < len(row):
        follows = row[at + 2].text if at + 2 < len(row) else ""
        if row[at].text == "." and row[at + 1].kind is Kind.NAME:
            if follows == "(":
                return
            yield row[at + 1].text
            at += 2
        elif row[at].text == "[" and follows == "]":
            name = literal(row[at + 1])
            if row[at + 1].kind is Kind.NUMBER:
                name = row[at + 1].text
            if name is None:
                return
            yield name
            at += 3
        else:
            return


def _arguments(row: Row, opening: int) -> tuple[tuple[Row, ...], int]:
    end = closing(row, opening)
    return tuple(elements(row[opening + 1 : end])), end
