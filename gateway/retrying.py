"""Retry settings for failed runs: backoff and maximum time."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from keyturn.gateway.setting_forms import parse_duration, parse_pause

Time = Annotated[timedelta, BeforeValidator(parse_duration)]
Pause = Annotated[timedelta, BeforeValidator(parse_pause)]


class RetrySettings(BaseModel):
    """How long a run is retried that fails with an error that can pass.

    Attributes:
        limit: how long at least: a run in which something is approved is retried until
            that approval has ended, if that is later.
        unknown_limit: how long when nobody knows whether the error can pass.
        notify_after: how long a run has to wait before people are told of it.
        first: the first pause; each one after it is twice as long.
        longest: the longest pause, unless a service asks for a longer one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    limit: Time = timedelta(hours=24)
    unknown_limit: Time = timedelta(minutes=15)
    notify_after: Time = timedelta(seconds=5)
    first: Pause = timedelta(milliseconds=500)
    longest: Pause = timedelta(seconds=60)
