"""JSON types of payloads: mutable to build them, read-only to validate them.

A bool is an int, for Python and for the type checkers.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

JSON: TypeAlias = "str | int | float | list[JSON] | dict[str, JSON] | None"
"""JSON under construction."""

ReadOnlyJSON: TypeAlias = (
    "str | int | float | Sequence[ReadOnlyJSON] | Mapping[str, ReadOnlyJSON] | None"
)
"""Covariant: lists and dicts of narrower types are accepted too."""
