"""Validation error: path, explanation and Slack's error name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why Slack would refuse a payload.

    `pointer` is an RFC 6901 JSON pointer from the top of the payload
    (`/blocks/2/elements/0/value`; empty for the payload itself), `code` is Slack's
    error name, and `message` contains the limit and the actual value.
    """

    pointer: str
    code: str
    message: str

    def __str__(self) -> str:
        """Return the problem as one line for a log or an exception."""
        return f"{self.pointer or '/'}: {self.message} ({self.code})"


class Violation(NamedTuple):
    """A JSON pointer and a message; the validated surface adds the error name."""

    pointer: str
    message: str

    def below(self, pointer: str) -> "Violation":
        """Return the violation with its parent's pointer prepended."""
        return Violation(pointer + self.pointer, self.message)


Violations = Iterator[Violation]


def step(pointer: str, key: str | int) -> str:
    """Add one key or index to a JSON pointer, escaped by RFC 6901."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
