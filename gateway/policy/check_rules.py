"""Policy models of what measures reviewers: spot checks and seeded defects."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from twokey.gateway.policy.fields import (
    Count,
    Duration,
    ExactName,
    Reason,
    Reviewers,
    ShareOfCalls,
)
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.strict_json import JsonObject


class SpotCheckRule(Record):
    """Which share of the calls that ran is checked afterwards, and by whom.

    People are asked about ``per_day`` calls a day at most.
    """

    share: ShareOfCalls
    of: Annotated[Reviewers, Field(min_length=1)]
    per_day: Count = Field(default=20, ge=1, le=1_000)


class SeededCall(Record):
    """A call with a mistake that a reviewer should notice; no agent asks for it.

    ``defect`` says what is wrong with it, and ``says`` is what its card gives as the
    agent's words.
    """

    tool: ExactName
    args: JsonObject
    defect: Reason
    agent: ExactName
    says: str = ""


class SeededDefectRule(Record):
    """Cards that never run, shown to find out whether reviewers notice a mistake.

    About one in ``every`` so long, at a moment that nobody can tell beforehand.
    """

    every: Duration
    calls: Annotated[tuple[SeededCall, ...], Field(min_length=1, max_length=100)]
