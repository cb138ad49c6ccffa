"""Retry settings for failed runs: backoff and maximum time."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_TIME = re.compile(r"(?P<count>[1-9][0-9]{0,5})(?P<unit>[smhd])", re.ASCII)
_MAX_DURATION = timedelta(days=30)


def _time(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a length of time; write 30m, 24h or 2d.")
    found = timedelta(**{_UNITS[match["unit"]]: int(match["count"])})
    if found > _MAX_DURATION:
        raise ValueError(f"{value!r} is longer than a run is kept; write 30d or less.")
    return found


Time = Annotated[timedelta, BeforeValidator(_time)]


class RetrySettings(BaseModel):
    """How long a run is retried that fails with an error that can pass.

    Attributes:
        limit: how long at least: a run in which something is approved is retried until
            that approval has ended, if that is later.
        unknown_limit: how long when nobody knows whether the error can pass.
        told_after: how long a run has to wait before people are told of it.
        first: the first pause; each one after it is twice as long.
        longest: the longest pause, unless a service asks for a longer one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    limit: Time = timedelta(hours=24)
    unknown_limit: Time = timedelta(minutes=15)
    told_after: Time = timedelta(seconds=5)
    first: Time = timedelta(milliseconds=500)
    longest: Time = timedelta(seconds=60)
