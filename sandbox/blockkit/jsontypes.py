"""JSON types of payloads, as we build them and as we read them.

A bool is an int, for Python and for the type checkers.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

JSON: TypeAlias = "str | int | float | list[JSON] | dict[str, JSON] | None"
"""JSON under construction."""

ReadOnlyJSON: TypeAlias = (
    "str | int | float | Sequence[ReadOnlyJSON] | Mapping[str, ReadOnlyJSON] | None"
)
"""JSON as a reader sees it: takes lists and dicts of anything narrower as well."""
