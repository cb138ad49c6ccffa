"""Parse durations such as ``90s``, ``30m``, ``1h`` or ``2d``."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?P<count>[1-9][0-9]{0,6})(?P<unit>[smhd])", re.ASCII)
_LONGEST = timedelta(days=30)


_PAUSE = re.compile(r"(?P<count>[1-9][0-9]{0,6})ms", re.ASCII)


def parse_pause(text: object) -> timedelta:
    """Parse a duration that may be a part of a second, such as ``500ms``.

    Raises:
        ValueError: as `parse_duration`.
    """
    match = _PAUSE.fullmatch(text) if isinstance(text, str) else None
    return (
        timedelta(milliseconds=int(match["count"])) if match else parse_duration(text)
    )


def parse_duration(text: object) -> timedelta:
    """Parse a duration; one that is parsed already stays as it is.

    Raises:
        ValueError: for anything else, and for more than 30 days.
    """
    if isinstance(text, timedelta):
        return text
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 90s, 30m, 1h or 2d.")
    duration = timedelta(seconds=int(match["count"]) * _UNITS[match["unit"]])
    if duration > _LONGEST:
        raise ValueError(f"{text!r} is longer than 30 days; choose a shorter time.")
    return duration
