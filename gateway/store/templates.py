"""Learn a text as a function of who and when, from two samples of it.

A decision is made twice for it, by two people at two moments. What both samples have in
common is kept as it is; where they differ, each has to show a text that is known of its
own sample, or a number that is as far from the moment in both. Anything else is not
learned, so that a template says nothing that the samples did not prove.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast


class NotLearned(Exception):
    """Two samples differ in what is not known of them."""


class Moment(NamedTuple):
    """Who said something, by which request, and when; and who starts it then.

    Attributes:
        now_ms: the store's clock.
        asked_ms: when Slack said who they are, by the store's clock.
        team: of the person.
        user: Slack id.
        name: for reading.
        request: digest of the signed request.
        signature: of what they said, in base64; empty where nobody signs.
        starts_ms: when a call is started by that, by the store's clock.
        owner: of the start.
        seal: of the record that is started, in hex.
    """

    now_ms: int
    asked_ms: int
    team: str
    user: str
    name: str
    request: str
    signature: str = ""
    starts_ms: int = 0
    owner: str = ""
    seal: str = ""


_MOMENTS = ("now_ms", "asked_ms", "starts_ms")
_TEXTS = ("team", "user", "name", "request", "signature", "owner", "seal")


def is_plain(moment: Moment) -> bool:
    """Return whether the texts of a moment stand in JSON as they are.

    An empty one is often left out there, and then stands nowhere.
    """
    texts = [moment.team, moment.user, moment.name, moment.request]
    together = "".join([*texts, moment.owner])
    is_as_it_is = together.isprintable() and '"' not in together
    return all(texts) and is_as_it_is and "\\" not in together


@dataclass(frozen=True, slots=True)
class Later:
    """A number that is as far from a moment as it was in the samples."""

    place: int
    by: int


@dataclass(frozen=True, slots=True)
class Template:
    """A text with its places for what a moment says."""

    pieces: tuple[str | int | Later, ...]

    def filled(self, moment: Moment) -> str:
        """Return the text of a moment."""
        return "".join([_said(one, moment) for one in self.pieces])


def _said(piece: str | int | Later, moment: Moment) -> str:
    # By the very type first: a click asks this some dozen times.
    if type(piece) is str:
        return piece
    if isinstance(piece, Later):
        return str(_number_at(piece, moment))
    return str(moment[cast("int", piece)])


def _number_at(later: Later, moment: Moment) -> int:
    return cast("int", moment[later.place]) + later.by


class Samples:
    """Two moments, by which what was made of each is compared.

    Their texts have to be different, but for the user: of a call that one person alone
    may decide, both samples are of the same.
    """

    def __init__(self, first: Moment, second: Moment) -> None:
        self.first, self.second = first, second
        apart = [getattr(second, one) - getattr(first, one) for one in _MOMENTS]
        if not second.starts_ms:
            del apart[-1]
        if len({0, *apart}) <= len(apart):
            raise ValueError("the samples are of one moment")
        self._places = {
            (getattr(first, name), getattr(second, name)): Moment._fields.index(name)
            for name in _TEXTS
            if getattr(first, name) != getattr(second, name)
        }
        places = map(Moment._fields.index, _MOMENTS)
        self._apart = dict(zip(apart, places, strict=False))
        texts = {one for pair in self._places for one in pair}
        # The longest first: one may begin as another does.
        known = sorted(map(re.escape, texts), key=len, reverse=True)
        self._tokens = re.compile(f"({'|'.join([*known, '[0-9]+'])})")

    def learned(self, one: object, other: object) -> object:
        """Return what both samples are, with a template wherever they differ.

        Raises:
            NotLearned: where they differ in what is not known of them.
        """
        if one == other and type(one) is type(other):
            return one
        if type(one) is not type(other):
            raise NotLearned
        match one:
            case str():
                return self.text(one, cast("str", other))
            case int() if not isinstance(one, bool):
                return self._number(one, cast("int", other))
            case dict():
                members = cast("dict[str, object]", one)
                return self._members(members, cast("dict[str, object]", other))
            case list() | tuple():
                elements = cast("Sequence[object]", one)
                return self._elements(elements, cast("Sequence[object]", other))
            case _:
                raise NotLearned

    def text(self, one: str, other: str) -> Template:
        """Return what both texts are.

        Raises:
            NotLearned: they differ in what is not known of them.
        """
        ours, theirs = self._tokens.split(one), self._tokens.split(other)
        if len(ours) != len(theirs):
            raise NotLearned
        pieces: list[str | int | Later] = []
        for own, their in zip(ours, theirs, strict=True):
            piece = own if own == their else self._piece(own, their)
            if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
                pieces[-1] += piece
            else:
                pieces.append(piece)
        return Template(tuple(pieces))

    def _piece(self, own: str, their: str) -> int | Later:
        if (place := self._places.get((own, their))) is not None:
            return place
        if not (own.isdecimal() and their.isdecimal()):
            raise NotLearned
        number, theirs = int(own), int(their)
        # Neither may begin with a zero that would be lost.
        if (str(number), str(theirs)) != (own, their):
            raise NotLearned
        return self._number(number, theirs)

    def _number(self, one: int, other: int) -> Later:
        place = self._apart.get(other - one)
        if place is None:
            raise NotLearned
        return Later(place, one - cast("int", self.first[place]))

    def _members(
        self, one: Mapping[str, object], other: Mapping[str, object]
    ) -> dict[str, object]:
        if [*one] != [*other]:
            raise NotLearned
        return {name: self.learned(value, other[name]) for name, value in one.items()}

    def _elements(self, one: Sequence[object], other: Sequence[object]) -> list[object]:
        if len(one) != len(other):
            raise NotLearned
        return [self.learned(*pair) for pair in zip(one, other, strict=True)]
