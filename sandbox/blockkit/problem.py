"""Validation error: path, explanation and Slack's error name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Problem:
    """Describe one reason why Slack would refuse a payload.

    `pointer` is an RFC 6901 JSON pointer from the top of the payload
    (`/blocks/2/elements/0/value`; empty for the payload itself), `code` the error
    name Slack answers with, and `message` names the limit and what was found.
    """

    pointer: str
    code: str
    message: str

    def __str__(self) -> str:
        """Give the problem as one line for a log or an exception."""
        return f"{self.pointer or '/'}: {self.message} ({self.code})"


class Violation(NamedTuple):
    """A JSON pointer and a message; the validated surface adds the error name."""

    pointer: str
    message: str

    def below(self, pointer: str) -> "Violation":
        """Return the violation with the pointer of its parent before its own."""
        return Violation(pointer + self.pointer, self.message)


Violations = Iterator[Violation]


def step(pointer: str, key: str | int) -> str:
    """Add one key or index to a JSON pointer, escaped by RFC 6901."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
