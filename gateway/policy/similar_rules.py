"""Policy model of ``allow_similar``: a tool's limits on standing approvals."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from twokey.gateway.approvals.similar import MOST_USES, exact_micro
from twokey.gateway.policy.fields import ArgsPath, ArgsPaths, Count, Duration
from twokey.gateway.protocol.records import Record
from twokey.gateway.validation_errors import shown

LONGEST = timedelta(days=7)
"""How long a standing approval may last at most, whatever the policy says."""


def _amount(value: object) -> object:
    # 0 would cover nothing; a bool is no amount.
    if isinstance(value, int | float) and exact_micro(value):
        return value
    raise ValueError(
        f"{shown(value)} is not an amount; write a number above 0 with at most six "
        "decimal places."
    )


Amount = Annotated[int | float, BeforeValidator(_amount)]


class SimilarRule(Record):
    """How far one standing approval of a tool may go.

    Every argument has to be equal to that of the reviewed call, but for those of
    ``may_differ`` and that of ``sum``, which is added up: all calls together come to
    ``at_most`` at most.
    """

    within: Duration
    uses: Count = Field(ge=1, le=MOST_USES)
    sum: ArgsPath | None = None
    at_most: Amount | None = None
    may_differ: ArgsPaths = ()

    @model_validator(mode="after")
    def _fits(self) -> SimilarRule:
        if (self.sum is None) != (self.at_most is None):
            raise ValueError("'sum' and 'at_most' belong together; write both or none.")
        if self.within > LONGEST:
            raise ValueError("'within' is 7 days at most.")
        free = (*self.may_differ, *((self.sum,) if self.sum else ()))
        for path in free:
            others = [one for one in free if one != path]
            is_inside = any(f"{path}.".startswith(f"{one}.") for one in others)
            if is_inside or free.count(path) > 1:
                raise ValueError(
                    f"{path!r} may differ by another path already; remove one."
                )
        return self

    @property
    def within_ms(self) -> int:
        """Return the longest time in milliseconds."""
        return int(self.within.total_seconds() * 1000)

    @property
    def total_micro(self) -> int:
        """Return the most that is added up, in millionths; 0 where nothing is."""
        return exact_micro(self.at_most) or 0
