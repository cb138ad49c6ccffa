"""Fill many templates of one moment in few steps.

Each text that a moment says, such as when it is, is made once for all of them. A
template becomes a format of Python's ``%`` operator that names these texts by their
place: filling it in is one call of C, however many places it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import cast

from pydantic_core import to_json

from twokey.gateway.store.templates import Later, Moment, Template


@dataclass(frozen=True, slots=True)
class Made:
    """A text that is not known before the others are: a seal of them.

    Attributes:
        place: its number among those of a `Filling`.
    """

    place: int


Piece = str | int | Later | Made
"""A text as it is, or the place of one: of a moment, later than it, or made."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text of which some is made, in its pieces."""

    pieces: Sequence[Piece]


Fill = Callable[[Sequence[str]], str]
"""Returns a text, given what `Filling.texts` returned and, for some, what is made."""


class Filling:
    """The places of some templates, all of them compiled before the first is filled.

    Args:
        made: how many texts are made of others.
    """

    def __init__(self, made: int = 0) -> None:
        self._made = made
        self._later: dict[Later, int] = {}

    def compiled(self, pieces: Sequence[Piece]) -> Fill:
        """Return what fills in a template with these pieces."""
        literal = "".join(
            [one.replace("%", "%%") if isinstance(one, str) else "%s" for one in pieces]
        )
        places = [self._place(one) for one in pieces if not isinstance(one, str)]
        return _fill(literal, places)

    def texts(self, moment: Moment) -> list[str]:
        """Return what a moment says in these templates."""
        return [
            *map(str, moment),
            *[str(cast("int", moment[one.place]) + one.by) for one in self._later],
        ]

    def _place(self, piece: int | Later | Made) -> int:
        match piece:
            # From the end: what is made comes last, and how much comes before it is
            # known only when all are compiled.
            case Made():
                return piece.place - self._made
            case Later() if piece.by:
                first = len(Moment._fields)
                return self._later.setdefault(piece, first + len(self._later))
            case Later():
                return piece.place
            case _:
                return piece


def _fill(literal: str, places: Sequence[int]) -> Fill:
    if not places:
        constant = literal % ()
        return lambda _texts: constant
    # Of one place it returns the text itself, which ``%`` takes as well.
    chosen = itemgetter(*places)
    return lambda texts: literal % chosen(texts)


def json_pieces(learned: object) -> list[Piece]:
    """Return the pieces of what `Samples.learned` returned, written as JSON.

    What a moment says has to stand there as it is, see `is_plain`.
    """
    match learned:
        case Template() | Pieces():
            # Character by character: a text in pieces is escaped as it is as a whole.
            escaped = [
                _json(one)[1:-1] if isinstance(one, str) else one
                for one in learned.pieces
            ]
            return ['"', *escaped, '"']
        case Later():
            return [learned]
        case dict():
            members = cast("Mapping[str, object]", learned)
            rows = [
                [_json(name), ":", *json_pieces(one)] for name, one in members.items()
            ]
            return ["{", *_listed(rows), "}"]
        case list() | tuple():
            elements = cast("Sequence[object]", learned)
            return ["[", *_listed([json_pieces(one) for one in elements]), "]"]
        case _:
            return [_json(learned)]


def pieces_of(text: str | Template) -> Sequence[Piece]:
    """Return the pieces of a text of which some may be as it is in any case."""
    return (text,) if isinstance(text, str) else text.pieces


def _listed(rows: Sequence[Sequence[Piece]]) -> list[Piece]:
    found: list[Piece] = []
    for row in rows:
        found += [",", *row] if found else row
    return found


def _json(value: object) -> str:
    return to_json(value).decode()
