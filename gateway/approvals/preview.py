"""Which arguments of a call are an e-mail or a SQL statement, so that cards show it so.

It names arguments and changes nothing that is hashed or run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import field_validator, model_validator

from keyturn.gateway.protocol.records import Record


class PreviewKind(StrEnum):
    """What the arguments are together."""

    EMAIL = "email"
    SQL = "sql"


_LABELS: Mapping[PreviewKind, Mapping[str, str]] = {
    PreviewKind.EMAIL: {
        "to": "To",
        "cc": "Cc",
        "bcc": "Bcc",
        "subject": "Subject",
        "body": "Body",
    },
    PreviewKind.SQL: {"statement": "SQL"},
}
"""The parts of each kind in the order of a card; the last is the text itself."""

_START = "args."


class Preview(Record):
    """Show some arguments as an e-mail or a SQL statement.

    The kind alone is enough if the arguments have the names of the keys below, as in
    ``preview: email``. Other arguments stay on the card, and ``redact`` still hides
    values. A SQL statement is shown with its kind and a warning for an ``UPDATE`` or
    ``DELETE`` without a condition. No warning is no proof of a condition.
    """

    kind: PreviewKind
    """``email`` has the first five keys below, ``sql`` has ``statement``."""
    to: str = ""
    """Argument with the recipients."""
    cc: str = ""
    """Argument with the recipients of copies."""
    bcc: str = ""
    """Argument with the recipients of hidden copies."""
    subject: str = ""
    """Argument with the subject."""
    body: str = ""
    """Argument with the text."""
    statement: str = ""
    """Argument with the statement."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_kind(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator("to", "cc", "bcc", "subject", "body", "statement")
    @classmethod
    def _whole_argument(cls, path: str) -> str:
        name = path.removeprefix(_START)
        # What else such an argument holds would have no place on the card.
        if path and (name == path or not name or "." in name):
            raise ValueError(
                f"{path!r} is no whole argument; write args.name, without what is "
                "inside it."
            )
        return path

    @model_validator(mode="after")
    def _fits(self) -> Preview:
        parts = _LABELS[self.kind]
        for key in self.written:
            if key not in parts:
                raise ValueError(
                    f"{key!r} is no part of {self.kind.value!r}; write "
                    f"{', '.join(parts)}."
                )
        if len(self.labels) < len(parts):
            raise ValueError("two parts are the same argument; remove one.")
        return self

    @property
    def written(self) -> dict[str, str]:
        """Return the paths that somebody wrote, by their parts."""
        values: dict[str, Any] = self.model_dump(exclude={"kind"})
        return {key: path for key, path in values.items() if path}

    @property
    def labels(self) -> dict[str, str]:
        """Return the label of each argument of the preview, in the order of a card."""
        return {self._name(key): label for key, label in _LABELS[self.kind].items()}

    @property
    def text(self) -> str:
        """Return the name of the argument that is the body or the statement."""
        return [*self.labels][-1]

    @property
    def paths(self) -> dict[str, str]:
        """Return what a tool must have: the text, and all that somebody wrote."""
        text = [*_LABELS[self.kind]][-1]
        return {**self.written, text: f"{_START}{self.text}"}

    def _name(self, key: str) -> str:
        return self.written.get(key, key).removeprefix(_START)
