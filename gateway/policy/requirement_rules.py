"""Policy model of named approval requirements."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from twokey.gateway.policy.fields import (
    Count,
    Distinct,
    RoleName,
    StrictBool,
    is_slack_id,
    one_or_many,
)
from twokey.gateway.protocol.records import Record

FEWEST_PARTS, MOST_PARTS = 2, 4
"""Parts of ``all``; every choice among them becomes a condition of its own."""


def _no_id(text: object) -> object:
    if isinstance(text, str) and is_slack_id(text):
        raise ValueError(
            f"{text!r} is a Slack id, and a requirement names roles; list it under a "
            "name in 'roles', and write that name."
        )
    return text


RoleNames = Annotated[
    tuple[Annotated[RoleName, BeforeValidator(_no_id)], ...],
    BeforeValidator(one_or_many),
    Distinct,
    Field(min_length=1),
]
PeopleCount = Annotated[Count, Field(ge=1, le=20)]


def _parts(parts: tuple[PartRule, ...] | None) -> tuple[PartRule, ...] | None:
    if parts is not None and not FEWEST_PARTS <= len(parts) <= MOST_PARTS:
        raise ValueError(
            f"it has {len(parts)} parts; write {FEWEST_PARTS} to {MOST_PARTS}, or "
            "'of' for one."
        )
    return parts


class PartRule(Record):
    """One part of ``all``: so many people of these roles."""

    of: RoleNames
    approvals: PeopleCount = 1


class RequirementRule(Record):
    """Who has to agree.

    Either ``of``: so many people of these roles, some of them holding the roles of
    ``at_least``. Or ``all``: every part, each by people of its own, so that one person
    in two roles counts once. ``order`` says that they may agree in any order. With
    ``editor_may_vote: false`` the person who changed the arguments cannot approve
    them.
    """

    of: RoleNames | None = None
    approvals: PeopleCount | None = None
    at_least: dict[RoleName, PeopleCount] = Field(default_factory=dict)
    all_: Annotated[tuple[PartRule, ...] | None, AfterValidator(_parts)] = Field(
        default=None, alias="all"
    )
    order: Literal["any"] = "any"
    editor_may_vote: StrictBool = True

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.of is None) == (self.all_ is None):
            raise ValueError("write either 'of: [support]' or 'all: [{of: …}, …]'.")
        if self.all_ is not None and (self.approvals is not None or self.at_least):
            raise ValueError(
                "'approvals' and 'at_least' go with 'of'; with 'all', write how many "
                "people into each part, as in {of: support, approvals: 2}."
            )
        return self
