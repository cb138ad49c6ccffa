"""Retry settings for failed runs: backoff and maximum time."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from keyturn.gateway.setting_forms import parse_duration, parse_pause

Time = Annotated[timedelta, BeforeValidator(parse_duration)]
Pause = Annotated[timedelta, BeforeValidator(parse_pause)]


class RetrySettings(BaseModel):
    """Time limits for retries of a run after a transient error.

    Attributes:
        limit: shortest time of retries: a run with an approved call is retried until
            that approval has ended, if that is later.
        unknown_limit: time of retries for an error of unknown kind.
        notify_after: wait of a run before people are notified.
        first: the first pause; each later pause is twice as long.
        longest: the longest pause, unless a service asks for a longer one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    limit: Time = timedelta(hours=24)
    unknown_limit: Time = timedelta(minutes=15)
    notify_after: Time = timedelta(seconds=5)
    first: Pause = timedelta(milliseconds=500)
    longest: Pause = timedelta(seconds=60)
