"""Format JSON values as an input's initial text, lossless and with nothing hidden."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

from pydantic import JsonValue

from twokey.bot.text import reveal
from twokey.gateway.approvals.evidence import as_text
from twokey.gateway.approvals.invisible_characters import is_hidden, mark

PATH_MARK = " \u203a "


def number_text(number: float) -> str:
    """Write a number in plain digits, without an exponent: 1e-7 is 0.0000001."""
    # Slack's number input takes no exponent. `repr` is the shortest text that reads
    # back as the same float.
    return format(Decimal(repr(number)), "f")


def json_text(value: JsonValue, *, max_length: int) -> str | None:
    """Write a value as JSON in which no character hides; None when it is longer.

    It is indented where that fits, and compact otherwise.

    Args:
        value: any JSON value.
        max_length: the most characters, as Slack counts them.
    """
    for indent in (2, None):
        text = json.dumps(value, ensure_ascii=False, indent=indent)
        # Slack may compose what it carries, so text that is not in NFC would come back
        # as other bytes; escapes survive.
        # The same for the parts of emoji, which Slack writes in a way of its own.
        if any(map(is_hidden, text)) or unicodedata.normalize("NFC", text) != text:
            text = json.dumps(value, ensure_ascii=True, indent=indent)
        if slack_length(text) <= max_length:
            return text
    return None


def option_labels(values: Sequence[JsonValue]) -> list[str]:
    """Write the choices of a menu: texts bare, everything else as JSON.

    Where two would read alike, such as 1 and "1", all of them are written as JSON.
    """
    labels = [reveal(as_text(value)) for value in values]
    if len(set(labels)) < len(labels):
        labels = [reveal(json.dumps(value, ensure_ascii=False)) for value in values]
    return [
        label.replace("\n", mark("\n")).replace("\t", mark("\t")) for label in labels
    ]


def slack_length(text: str) -> int:
    """Count UTF-16 code units: the most that any client may count."""
    return len(text) + sum(character > "\uffff" for character in text)


def is_carried(before: str, after: str) -> bool:
    """Return whether a text came back untouched: line ends and composition apart."""
    return _carried(before) == _carried(after)


def _carried(text: str) -> str:
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n"))


def path_label(path: tuple[str, ...]) -> str:
    """Name a nested argument by the keys that lead to it; untrusted text."""
    return PATH_MARK.join(path)
