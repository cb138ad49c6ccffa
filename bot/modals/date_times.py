"""Convert times and date-times between JSON Schema's texts and Slack's pickers.

A text is offered in a picker only if the picker gives exactly this text back: seconds
are zero, and a date-time says its offset from UTC. Slack shows a date-time in the time
zone of the person who reads it, so one without an offset cannot be shown.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_TIME = re.compile(
    r"(?P<clock>([01][0-9]|2[0-3]):[0-5][0-9])"
    r"(?P<rest>(:00(\.0{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)"
)
_ZONE = re.compile(r"(Z|[+-][0-9]{2}:[0-9]{2})\Z")
# What Slack's date-time picker takes: ten digits.
_FIRST_S, _LAST_S = 1_000_000_000, 9_999_999_999
_NEW = "Z"
_SECONDS = ":00"


def clock_of(text: str) -> str | None:
    """Return the ``HH:mm`` of a time for a picker; None when it has no such input."""
    found = _TIME.fullmatch(text)
    return found["clock"] if found else None


def zone_of(text: str) -> str:
    """Return the time zone that a time or date-time names; "" for none.

    UTC, or an offset from it, such as ``UTC+01:00``.
    """
    found = _ZONE.search(text)
    if not found:
        return ""
    return "UTC" if found[0] == _NEW else f"UTC{found[0]}"


def time_text(clock: str, like: str | None) -> str:
    """Return a time of a picker, written like the one that it replaces."""
    found = _TIME.fullmatch(like) if like else None
    return clock + (found["rest"] if found else _SECONDS)


def seconds_of(text: str) -> int | None:
    """Return a date-time in Unix seconds for a picker; None when it has no such input.

    None as well for a text of which a picker would make another one.
    """
    try:
        seconds = datetime.fromisoformat(text).timestamp()
        is_exact = moment_text(int(seconds), text) == text
    except (ValueError, OverflowError):
        return None
    is_whole = seconds % 60 == 0
    is_offered = is_exact and is_whole and _FIRST_S <= seconds <= _LAST_S
    return int(seconds) if is_offered else None


def moment_text(seconds: int, like: str | None) -> str:
    """Return a date-time of a picker, with the offset of the one that it replaces.

    Raises:
        ValueError: the other one has no offset, or is no date-time.
    """
    zone = datetime.fromisoformat(like).tzinfo if like else UTC
    if zone is None:
        raise ValueError(f"The date-time {like!r} has no offset from UTC.")
    text = datetime.fromtimestamp(seconds, zone).isoformat()
    is_short = like is None or like.endswith(_NEW)
    return text.removesuffix("+00:00") + _NEW if is_short else text
