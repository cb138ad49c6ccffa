"""Schema node types that describe Block Kit.

A shape is data: `schema_validator.violations` compares it with a payload. Members that
a shape does not list are refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from keyturn.sandbox.blockkit.jsontypes import ReadOnlyJSON
from keyturn.sandbox.blockkit.problem import Violations

Node: TypeAlias = Mapping[str, ReadOnlyJSON]
Rule: TypeAlias = Callable[[Node], Violations]
"""A rule between fields of one record; each field already has a valid shape."""

Format: TypeAlias = Callable[[str], str | None]
"""Checks a string; returns the expected format, or None if the string is valid."""


@dataclass(frozen=True, slots=True)
class Str:
    """A string of `least` to `most` characters, optionally with a format."""

    most: int
    least: int = 1
    form: Format | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer from `least` to `most`, both included; never a boolean."""

    least: int
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """An integer or a decimal number; never a boolean."""

    is_positive: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""


@dataclass(frozen=True, slots=True)
class Many:
    """An array of `least` to `most` items of one shape."""

    item: "Shape"
    most: int | None = None
    least: int = 1


@dataclass(frozen=True, slots=True)
class Record:
    """An object with only these keys, which satisfies `rules`."""

    required: Mapping[str, "Shape"]
    optional: Mapping[str, "Shape"] = field(
        default_factory=lambda: MappingProxyType({})
    )
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Tagged:
    """An object whose `type` selects one of several records.

    `noun` is its name in messages; `refused` explains types that Slack does not accept
    in this place.
    """

    noun: str
    variants: Mapping[str, Record]
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Nullable:
    """Null or the shape."""

    shape: "Shape"


Shape: TypeAlias = (
    Str | Choice | Whole | Number | Flag | Many | Record | Tagged | Nullable
)
