"""Settings of how long things are kept."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

AUDIT_KEPT = timedelta(days=400)
"""How long audit entries are kept where nobody says otherwise."""

_SHORTEST = 30
"""Days for which approvals are kept: the log outlives what it tells of."""

MESSAGES_KEPT = timedelta(days=30)
"""How long messages in Slack keep what they show where nobody says otherwise."""

_NEVER = "never"

_DAYS = re.compile(r"(?P<count>[1-9][0-9]{0,4})d", re.ASCII)


def _number_of_days(value: object, what_to_write: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    match = _DAYS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a number of days; write {what_to_write}.")
    return timedelta(days=int(match["count"]))


def _days_or_never(value: object) -> timedelta | None:
    if value is None or value == _NEVER:
        return None
    return _number_of_days(value, f"30d, or {_NEVER} to leave messages as they are")


def _days(value: object) -> timedelta:
    found = _number_of_days(value, "400d")
    if found.days < _SHORTEST:
        raise ValueError(
            f"{value!r} is shorter than approvals are kept; write {_SHORTEST}d or more."
        )
    return found


class RetentionSettings(BaseModel):
    """How long the store and Slack keep what grows with every call.

    Attributes:
        audit: entries of the audit log.
        messages: what messages in Slack show, after their approval has ended; None: for
            ever.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    audit: Annotated[timedelta, BeforeValidator(_days)] = AUDIT_KEPT
    messages: Annotated[timedelta | None, BeforeValidator(_days_or_never)] = (
        MESSAGES_KEPT
    )
