"""Audit log retention setting."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

AUDIT_KEPT = timedelta(days=400)
"""How long audit entries are kept where nobody says otherwise."""

_SHORTEST = 30
"""Days for which approvals are kept: the log outlives what it tells of."""

_DAYS = re.compile(r"(?P<count>[1-9][0-9]{0,4})d", re.ASCII)


def _days(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    match = _DAYS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a number of days; write 400d.")
    count = int(match["count"])
    if count < _SHORTEST:
        raise ValueError(
            f"{value!r} is shorter than approvals are kept; write {_SHORTEST}d or more."
        )
    return timedelta(days=count)


class RetentionSettings(BaseModel):
    """How long the store keeps what grows with every call."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    audit: Annotated[timedelta, BeforeValidator(_days)] = AUDIT_KEPT
