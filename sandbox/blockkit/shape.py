"""Schema node types that describe Block Kit.

A shape is data: `schema_validator.violations` walks it beside a payload. What a shape
does not name is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from keyturn.sandbox.blockkit.jsontypes import ReadOnlyJSON
from keyturn.sandbox.blockkit.problem import Violations

Node: TypeAlias = Mapping[str, ReadOnlyJSON]
Rule: TypeAlias = Callable[[Node], Violations]
"""A rule between fields of one record; it may trust each field's own shape."""

Format: TypeAlias = Callable[[str], str | None]
"""Look at a string and say what it should have been, or None when it is fine."""


@dataclass(frozen=True, slots=True)
class Str:
    """Take a string of `least` to `most` characters, perhaps of a form."""

    most: int
    least: int = 1
    form: Format | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Take one of a few words."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """Take an integer from `least` to `most`, both included; never a boolean."""

    least: int
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """Take an integer or a decimal number; never a boolean."""

    is_positive: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """Take true or false."""


@dataclass(frozen=True, slots=True)
class Many:
    """Take an array of `least` to `most` items of one shape."""

    item: "Shape"
    most: int | None = None
    least: int = 1


@dataclass(frozen=True, slots=True)
class Record:
    """Take an object with these keys and no other, then hold it to `rules`."""

    required: Mapping[str, "Shape"]
    optional: Mapping[str, "Shape"] = field(
        default_factory=lambda: MappingProxyType({})
    )
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Tagged:
    """Take an object whose `type` picks one of several records.

    `noun` is what the message calls it; `refused` explains types that Slack knows but
    does not take in this place.
    """

    noun: str
    variants: Mapping[str, Record]
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Nullable:
    """Take null or the shape."""

    shape: "Shape"


Shape: TypeAlias = (
    Str | Choice | Whole | Number | Flag | Many | Record | Tagged | Nullable
)
