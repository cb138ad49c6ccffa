"""Enums of what reviewers say: decisions (`Verb`) and findings of a reconciliation."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator


class Verb(StrEnum):
    """What a reviewer can say about an item."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"


def _verbs(value: object) -> object:
    # Records and policies before reasons could be asked for approvals say true or
    # false.
    if isinstance(value, bool):
        return (Verb.EDIT, Verb.REJECT) if value else ()
    return value


ReasonFor = Annotated[tuple[Verb, ...], BeforeValidator(_verbs)]
"""The decisions that need a reason; ``true`` stands for an edit and a rejection."""


class Finding(StrEnum):
    """What a person found out about an execution in doubt."""

    EXECUTED = "executed"
    RERUN = "rerun"
    SKIP = "skip"
