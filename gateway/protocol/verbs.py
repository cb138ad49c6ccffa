"""Enums of what reviewers say: decisions (`Verb`) and findings of a reconciliation."""

from __future__ import annotations

from enum import StrEnum


class Verb(StrEnum):
    """What a reviewer can say about an item."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"


class Finding(StrEnum):
    """What a person found out about an execution in doubt."""

    EXECUTED = "executed"
    RERUN = "rerun"
    SKIP = "skip"
