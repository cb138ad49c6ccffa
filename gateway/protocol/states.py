"""States of one call, as agent and gateway name them."""

from __future__ import annotations

from enum import StrEnum


class ItemState(StrEnum):
    """Where one call stands. ``authorized`` is not ``executed``."""

    PENDING = "pending"
    AUTHORIZED = "authorized"
    EXECUTING = "executing"
    EXECUTED = "executed"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"
    REJECTED = "rejected"
    ANSWERED = "answered"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"
    LAPSED = "lapsed"
